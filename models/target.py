"""The machine that a pack is compiled for: blocked weight layouts depend on the instruction set."""

import functools
import platform
from pathlib import Path

from pydantic import BaseModel, ConfigDict

# ONNX Runtime's blocked (NCHWc) layout by instruction set: channels in a block, 1 = not blocked.
_BLOCKS = {"avx512": 16, "avx2": 8, "avx": 8}


class Target(BaseModel):
    """What must agree between the compiling and the running machine, and what it was built with."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    isa: str
    block: int
    onnxruntime: str

    def runs_on(self, host: "Target") -> bool:
        """Return whether packs for this target run on ``host``; library versions may differ."""
        return (self.isa, self.block) == (host.isa, host.block)


@functools.cache
def host_target() -> Target:
    """Return the target of this machine."""
    import onnxruntime

    machine = platform.machine()
    extension = _vector_extension(_cpu_flags()) if machine == "x86_64" else "generic"
    return Target(
        isa=f"{machine}-{extension}",
        block=_BLOCKS.get(extension, 1),
        onnxruntime=onnxruntime.__version__,
    )


def _cpu_flags() -> frozenset[str]:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="ascii", errors="replace").splitlines()
    except OSError:
        return frozenset()
    return next(
        (frozenset(line.partition(":")[2].split()) for line in lines if line.startswith("flags")),
        frozenset(),
    )


def _vector_extension(flags: frozenset[str]) -> str:
    """Return the widest set that ONNX Runtime's kernels distinguish."""
    if {"avx512f", "avx512bw", "avx512dq", "avx512vl"} <= flags:
        return "avx512"
    if {"avx2", "fma"} <= flags:
        return "avx2"
    return "avx" if "avx" in flags else "sse2"
