"""One plan, run: ``python -m benchmarks.children.planned PACK BYTES|pre INPUTS.npz SWEEPS RESULT.json``.

Writes what was planned and predicted, what was allocated and took how long, and a checksum of the outputs.
"""

import json
import sys
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from models.packs.manifest import checksum
from models.packs.pack import open_pack
from models.runtime.sessions import claim_process
from pipeline.devices.cpu import CpuDevice
from pipeline.execution.given import Arrays
from pipeline.execution.opened import opened
from pipeline.fitting.fit import fit
from pipeline.fitting.wanted import Fitted, Wanted
from pipeline.profiles.machine import this_machine
from pipeline.profiles.profile_file import load_profile
from pipeline.program.prepare import prepare
from pipeline.program.program import Program
from pipeline.schedule.architectures import ARCHITECTURES


def anonymous_bytes() -> int:
    """Return the anonymous memory of this process, as the kernel counts it."""
    for line in Path("/proc/self/status").read_text("ascii").splitlines():
        if line.startswith("RssAnon:"):
            return int(line.split()[1]) << 10
    return 0


def checksums(outputs: Arrays) -> str:
    """Return what distinguishes answers; copies of them would be memory of the request, not of the plan."""
    return " ".join(checksum(np.ascontiguousarray(outputs[name]).data) for name in sorted(outputs))


def measure(
    program: Program, device: CpuDevice, fitted: Fitted, inputs: Any, sweeps: int
) -> dict[str, Any]:
    """Run ``fitted`` so often; return figures."""
    base = anonymous_bytes()
    with opened(program, fitted.plan, device) as engine:
        outputs, _ = engine.answer(inputs, checksums)
        delays = [engine.answer(inputs, checksums)[1].delay_seconds for _ in range(sweeps)]
        allocated = engine.statistics().memory
    return {
        "planned": fitted.plan.memory,
        "allocated": allocated,
        "regions": len(fitted.plan.choice.regions),
        "read_bytes": fitted.plan.read_bytes,
        "predicted_seconds": fitted.predicted_seconds,
        "seconds": median(delays),
        "base_bytes": base,
        "outputs": outputs,
    }


def main() -> None:
    """Plan, run, write."""
    path, limit, inputs, sweeps, result = sys.argv[1:]
    claim_process()
    device = CpuDevice()
    program = prepare(open_pack(Path(path)), device)
    profile = load_profile(program.pack, this_machine(program.pack.weights_path, device))
    if limit == "pre":
        fitted = fit(program, ARCHITECTURES["pre"], profile=profile)
    else:
        auto = device.adapt(ARCHITECTURES["auto"])
        fitted = fit(program, auto, Wanted(total_bytes=int(limit)), profile)
    with np.load(inputs) as given:
        figures = measure(program, device, fitted, dict(given), int(sweeps))
    Path(result).write_text(json.dumps(figures), "utf-8")


if __name__ == "__main__":
    main()
