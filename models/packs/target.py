"""The machine that a pack is compiled for.

On a CPU blocked weight layouts depend on the instruction set; plain ones run anywhere. A pack for CUDA has
plain layouts, and its kernels are compiled from source where it is loaded: its compute capability is what
it is meant for, nothing that is in it.
"""

import functools
import platform
import re
from dataclasses import dataclass
from pathlib import Path

from models.errors import ModelError
from models.packs.names import CPU
from models.records import Record

_CPU_INFO = Path("/proc/cpuinfo")
# Features of processors that add up four products of bytes in 32 bits: of x86, of Arm.
_DOT_PRODUCTS = frozenset(("avx_vnni", "avx512_vnni", "asimddp"))
# ONNX Runtime's blocked (NCHWc) layout by instruction set: channels in a block, 1 = not blocked.
_BLOCKS = {"avx512": 16, "avx2": 8, "avx": 8}
#: The same by the names of their targets: packs for any of them are compiled anywhere.
_BLOCKED = {f"x86_64-{extension}": block for extension, block in _BLOCKS.items()}

#: The name of the target of C, for which there are no packs.
C = "c"
# Weights of this size have exact sums on every processor, and all that signed bytes hold on some.
_EXACT_ANYWHERE, _LARGEST = 64, 128
_CUDA = re.compile(r"cuda-sm([1-9][0-9]{1,2})")
# CPUs of which ONNX Runtime has no blocked layout: a pack for one of them runs on any CPU.
_PLAIN = ("aarch64-generic", "x86_64-sse2")
# Compute capabilities, times ten.
_LEAST_CAPABILITY, _MOST_CAPABILITY = 70, 129


@dataclass(frozen=True, slots=True, kw_only=True)
class Target(Record):
    """What must agree between the compiling and the running machine, and what it was built with.

    ``exact_weights``: the size of the largest signed weight that ONNX Runtime may multiply unsigned bytes
    by there with exact sums; of a pack, of the largest that it has.
    """

    isa: str
    block: int
    onnxruntime: str
    exact_weights: int

    @property
    def capability(self) -> int | None:
        """Compute capability times ten (72 is 7.2) of a CUDA target, None of a CPU."""
        match = _CUDA.fullmatch(self.isa)
        return int(match[1]) if match else None

    def runs_on(self, host: "Target", recompile: bool = False) -> bool:
        """Return whether packs for this target run on ``host``; library versions may differ.

        Plain layouts are the same on all CPUs. ``recompile``: kernels are compiled for ``host``, so that
        another compute capability will do.
        """
        if self.exact_weights > host.exact_weights:
            return False
        if self.block == 1 and self.capability is None:
            return host.capability is None
        if recompile and None not in (self.capability, host.capability):
            return self.block == host.block
        return (self.isa, self.block) == (host.isa, host.block)


def named_target(name: str) -> Target:
    """Return the target called ``name``: "cpu", "x86_64-avx2", "aarch64-generic", "cuda-sm72", for example.

    Raises:
        ModelError: there is none; the message lists those that there are.
    """
    host = host_target()
    if name in (CPU, host.isa):
        return host
    if name in _PLAIN or name in _BLOCKED:
        return _foreign(name, _BLOCKED.get(name, 1))
    capability = _CUDA.fullmatch(name)
    if capability is None or not _LEAST_CAPABILITY <= int(capability[1]) <= _MOST_CAPABILITY:
        raise ModelError(
            f"cannot compile for {name!r}; there are {CPU} ({host.isa}, this machine), "
            f"{', '.join(_BLOCKED)}, "
            f"{' and '.join(_PLAIN)} (any CPU, in plain layouts), and cuda-sm{_LEAST_CAPABILITY} to "
            f"cuda-sm{_MOST_CAPABILITY} (compute capability, e.g. cuda-sm72)"
        )
    return cuda_target(int(capability[1]))


def cuda_target(capability: int) -> Target:
    """Return the target of GPUs of compute capability ``capability`` / 10."""
    return _foreign(f"cuda-sm{capability}")


def c_target() -> Target:
    """Return the target of C: plain layouts, whose numbers any compiler's loops read."""
    return _foreign(C)


def _foreign(isa: str, block: int = 1) -> Target:
    """Return the target ``isa`` that is not this machine: its processor may have no dot products."""
    return Target(
        isa=isa,
        block=block,
        onnxruntime=host_target().onnxruntime,
        exact_weights=_EXACT_ANYWHERE,
    )


@functools.cache
def host_target() -> Target:
    """Return the target of this machine."""
    import onnxruntime

    isa = host_isa()
    block = _BLOCKS.get(isa.rpartition("-")[2], 1)
    return Target(
        isa=isa,
        block=block,
        onnxruntime=onnxruntime.__version__,
        exact_weights=_exact_weights(),
    )


def host_isa() -> str:
    """Return the name of this machine's target; no library is loaded for it."""
    machine = platform.machine()
    extension = _vector_extension(_cpu_flags()) if machine == "x86_64" else "generic"
    return f"{machine}-{extension}"


def _exact_weights() -> int:
    """Return up to which size signed 8-bit weights have exact sums in ONNX Runtime on this machine.

    Without dot products it adds up pairs of products in 16 bits, on x86 of an unsigned byte and a signed
    one, so that a larger weight than 64 saturates; on Arm of two signed ones, where nothing but two
    products of -128 and -128 overflows (tried in emulation, docs/reference/jetson.md).
    """
    if not _DOT_PRODUCTS.isdisjoint(_cpu_flags()):
        return _LARGEST
    return _LARGEST - 1 if platform.machine() == "aarch64" else _EXACT_ANYWHERE


def _cpu_flags() -> frozenset[str]:
    """Return what the processor can do beyond its architecture, in the words of the kernel."""
    try:
        lines = _CPU_INFO.read_text(encoding="ascii", errors="replace").splitlines()
    except OSError:
        return frozenset()
    return next(
        (
            frozenset(line.partition(":")[2].split())
            for line in lines
            if line.startswith(("flags", "Features"))
        ),
        frozenset(),
    )


def _vector_extension(flags: frozenset[str]) -> str:
    """Return the widest set that ONNX Runtime's kernels distinguish."""
    if {"avx512f", "avx512bw", "avx512dq", "avx512vl"} <= flags:
        return "avx512"
    if {"avx2", "fma"} <= flags:
        return "avx2"
    return "avx" if "avx" in flags else "sse2"
