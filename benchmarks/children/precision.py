"""One cell of ``benchmarks.planning.precisions``.

Run as ``python -m benchmarks.children.precision JOB.json RESULT.json``. The job has ``packs`` that answer
one after the other, ``bytes`` that they may take together, into how many ``partitions`` each is cut, which
compute at once, and ``sweeps``. The result has what was planned, what was allocated, what the process grew
by, seconds from one answer to the next, and how far answers are from those of the same packs with all in
memory.
"""

import json
import sys
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from benchmarks.children.application import opened, streamed
from loader.pool.pool import ReadPool
from models.packs.pack import Pack, open_pack
from models.runtime.sessions import claim_process
from pipeline.devices.cpu import CpuDevice
from pipeline.execution.answering import Answering
from pipeline.execution.given import Arrays, copies
from pipeline.fitting.fit import fit
from pipeline.fitting.partitioned import fit_partitions
from pipeline.fitting.wanted import Wanted
from pipeline.measuring.sweeps import random_inputs
from pipeline.peers.child import anonymous_bytes
from pipeline.planning.make import make_plan
from pipeline.planning.plan import PipelinePlan, Plan
from pipeline.profiles.machine import this_machine
from pipeline.profiles.profile import Profile, ProfileError
from pipeline.profiles.profile_file import load_profile
from pipeline.program.prepare import prepare
from pipeline.schedule.architectures import ARCHITECTURES

_AUTO = ARCHITECTURES["auto"]
_MOST_TRIES, _PAGE = 8, 64 << 10
# What the paper counts, of the kinds of an engine's memory.
_COUNTED = ("staging", "ring", "resident", "arena", "scratch")


def counted(plan: Plan) -> int:
    """Return what the paper counts of a plan: weights, arena and scratch, bytes."""
    return plan.weight_bytes + plan.arena_bytes + plan.scratch_bytes


@dataclass(frozen=True)
class PrecisionRun:
    """What one network gave; bytes and seconds. ``error``: of the largest value."""

    allocated: int
    grown: int
    seconds: float
    error: float


class MeasuredNetwork:
    """A pack and its plans, in so many partitions that compute at once."""

    def __init__(self, path: Path, device: CpuDevice, partitions: int) -> None:
        self.program = prepare(open_pack(path), device)
        self._device = device
        self._partitions = partitions
        self._profile = _profile(self.program.pack, device)
        self.least = self._fitted(None)

    def _fitted(self, total_bytes: int | None) -> Plan:
        """Return the best plan within ``total_bytes`` of everything; None: the smallest."""
        program, profile = self.program, self._profile
        if self._partitions > 1:
            return fit_partitions(program, _AUTO, self._partitions, total_bytes, profile).plan
        least = total_bytes is None
        wanted = Wanted(total_bytes=total_bytes, least=least, thorough=not least)
        return fit(program, _AUTO, wanted, profile).plan

    def within(self, n_bytes: float) -> Plan | None:
        """Return the fastest plan whose weights, arena and scratch take at most so many bytes."""
        low, found = self.least.total_bytes, None
        total = most = int(n_bytes) + low - counted(self.least)
        for _ in range(_MOST_TRIES):
            if total < self.least.total_bytes:
                break
            plan = self._fitted(total)
            if counted(plan) <= n_bytes:
                low, found = total, plan
            else:
                most = total
            if low == total == most or most - low < _PAGE:
                break
            total = (low + most) // 2
        least = self.least if counted(self.least) <= n_bytes else None
        return found or least

    def run(self, plan: Plan, sweeps: int) -> PrecisionRun:
        """Run ``plan`` so often, and once with all in memory."""
        inputs = random_inputs(self.program)
        with ExitStack() as stack:
            whole = make_plan(self.program, ARCHITECTURES["pre"])
            expected, _ = self._opened(stack, whole).answer(inputs, copies)
        before = anonymous_bytes()
        with ExitStack() as stack:
            engine = self._opened(stack, plan)
            answer, _ = engine.answer(inputs, copies)
            if isinstance(plan, PipelinePlan):
                _, seconds = streamed(engine, inputs, sweeps)
            else:
                seconds = median(
                    engine.answer(inputs, copies)[1].delay_seconds for _ in range(sweeps)
                )
            memory = engine.statistics().memory
            grown = anonymous_bytes() - before
        held = sum(memory.get(kind, 0) for kind in _COUNTED)
        return PrecisionRun(held, grown, seconds, error(answer, expected))

    def _opened(self, stack: ExitStack, plan: Plan) -> Answering:
        pool = ReadPool()
        stack.callback(pool.close)
        return opened(stack, self.program, plan, self._device, pool, None)


def _profile(pack: Pack, device: CpuDevice) -> Profile | None:
    try:
        return load_profile(pack, this_machine(pack.weights_path, device))
    except ProfileError:
        return None


def error(answer: Arrays, whole: Arrays) -> float:
    """Return by how much answers differ at most, as a part of the largest value of their output."""
    return max(
        float(np.abs(answer[name] - whole[name]).max() / np.abs(whole[name]).max())
        for name in whole
    )


def cell(job: dict[str, Any]) -> dict[str, Any]:
    """Return what plans of the job's packs take within its bytes together, and how long they answer."""
    partitions = job["partitions"]
    # Where partitions compute at once, each has a core and its kernels a thread.
    device = CpuDevice(None if partitions == 1 else 1)
    held = [MeasuredNetwork(Path(pack), device, partitions) for pack in job["packs"]]
    least = [counted(network.least) for network in held]
    shares = [job["bytes"] * each / sum(least) for each in least]
    plans = [network.within(share) for network, share in zip(held, shares, strict=True)]
    found = [plan for plan in plans if plan is not None]
    if len(found) < len(held):
        return {"least": sum(least)}
    runs = [network.run(plan, job["sweeps"]) for network, plan in zip(held, found, strict=True)]
    return {
        "least": sum(least),
        "planned": sum(map(counted, found)),
        "allocated": sum(run.allocated for run in runs),
        "grown": sum(run.grown for run in runs),
        "seconds": sum(run.seconds for run in runs),
        "error": max(run.error for run in runs),
    }


def main() -> None:
    """Run the cell, write its result."""
    job = json.loads(Path(sys.argv[1]).read_text("utf-8"))
    claim_process()
    Path(sys.argv[2]).write_text(json.dumps(cell(job)), "utf-8")


if __name__ == "__main__":
    main()
