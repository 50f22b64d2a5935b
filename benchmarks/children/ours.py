"""Layerstream as the programs here measure it: ``auto`` within a part of the weights.

As a process that is measured: ``python -m benchmarks.children.ours PACK PERCENT INPUTS.npz THREADS``.
"""

import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from numpy.typing import NDArray

from loader.pool.pool import ReadPool
from models.packs.pack import Pack, open_pack
from models.runtime.sessions import claim_process
from pipeline.devices.cpu import CpuDevice
from pipeline.execution.engine import Engine
from pipeline.execution.opened import open_engine
from pipeline.fitting.fit import fit
from pipeline.fitting.wanted import Wanted
from pipeline.peers.quiet import wait_until_quiet
from pipeline.peers.runtimes import Answer, Tensors
from pipeline.peers.serve import load_inputs, serve
from pipeline.planning.plan import Plan
from pipeline.profiles.machine import this_machine
from pipeline.profiles.profile import Profile, ProfileError
from pipeline.profiles.profile_file import load_profile, save_found
from pipeline.schedule.architectures import ARCHITECTURES

T = TypeVar("T")


@dataclass(frozen=True)
class Ours:
    """An open engine, and the seconds that each step on the way there took."""

    engine: Engine
    inputs: Tensors
    steps: dict[str, float]

    def answer(self) -> list[NDArray[Any]]:
        """Answer once: the outputs in the order of the manifest."""
        outputs = self.engine.run(self.inputs)[0]
        return [outputs[port.name] for port in self.engine.pack.manifest.outputs]

    def settle(self) -> None:
        """Wait until nothing runs."""
        self.engine.settle()
        wait_until_quiet()


def open_ours(path: Path, percent: float, inputs: Tensors, threads: int) -> Ours:
    """Open the pack in ``path`` with at most ``percent`` of its weights in memory, timing each step."""
    steps: dict[str, float] = {}
    device = _timed(steps, "onnxruntime", lambda: CpuDevice(threads))
    pack = _timed(steps, "pack", lambda: open_pack(path))
    plan = _timed(steps, "plan", lambda: plan_auto(pack, percent, threads))
    engine = _timed(steps, "engine", lambda: open_engine(pack, plan, device, ReadPool()))
    return Ours(engine, inputs, steps)


def plan_auto(pack: Pack, percent: float, threads: int) -> Plan:
    """Return the plan of ``auto`` in ``percent`` of the weights, on the pack's profile if it has one."""
    limit = int(pack.manifest.weight_bytes * percent / 100)
    auto = ARCHITECTURES["auto"]
    try:
        profile: Profile | None = load_profile(
            pack, this_machine(pack.weights_path, CpuDevice(threads))
        )
    except ProfileError:
        profile = None
    plan = fit(pack.manifest, auto, Wanted(weight_bytes=limit), profile).plan
    save_found([profile])
    return plan


def _timed(steps: dict[str, float], name: str, step: Callable[[], T]) -> T:
    started = time.perf_counter()
    made = step()
    steps[name] = time.perf_counter() - started
    return made


def main() -> None:
    """Load the pack and obey."""
    claim_process()
    path, percent, inputs, threads = sys.argv[1:]
    opened: list[Ours] = []

    def load() -> Answer:
        opened.append(
            open_ours(Path(path), float(percent), load_inputs(Path(inputs)), int(threads))
        )
        return opened[0].answer

    def settle() -> None:
        opened[0].settle()

    serve(load, settle)


if __name__ == "__main__":
    main()
