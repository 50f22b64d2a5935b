"""Layerstream as a process that is measured, beside other runtimes in theirs (pipeline/peers).

``python -m pipeline.benchmark.ours PACK ARCHITECTURE PERCENT INPUTS.npz THREADS``; PERCENT of the weights
may be in memory, "-": as many as the architecture takes.
"""

import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from numpy.typing import NDArray

from loader.pool.pool import ReadPool
from models.packs.pack import open_pack
from models.processes import python_command
from models.runtime.sessions import claim_process, wait_until_quiet
from pipeline.devices.base import Device
from pipeline.devices.cpu import CpuDevice
from pipeline.execution.engine import Engine
from pipeline.execution.opened import open_engine
from pipeline.fitting.fit import fit
from pipeline.fitting.wanted import Wanted
from pipeline.peers.child import Answer, Tensors, load_inputs, serve
from pipeline.peers.peer import save_inputs
from pipeline.planning.plan import Plan
from pipeline.profiles.found_plans_file import plans_of
from pipeline.profiles.machine import this_machine
from pipeline.profiles.profile import Profile, ProfileError
from pipeline.profiles.profile_file import load_profile
from pipeline.program.prepare import prepare
from pipeline.program.program import Program
from pipeline.schedule.architectures import ARCHITECTURES


@dataclass(frozen=True)
class Ours:
    """An open engine, and what it is asked."""

    engine: Engine
    inputs: Tensors

    def answer(self) -> list[NDArray[Any]]:
        """Answer once: the outputs in the order of the network."""
        outputs = self.engine.run(self.inputs)[0]
        return [outputs[port.name] for port in self.engine.program.outputs]

    def settle(self) -> None:
        """Wait until nothing runs."""
        self.engine.settle()
        wait_until_quiet()


@dataclass(frozen=True)
class StreamedArchitecture:
    """An architecture, with at most ``percent`` of the weights in memory; None: as many as it takes."""

    architecture: str
    percent: float | None = None

    @property
    def label(self) -> str:
        return self.architecture + ("" if self.percent is None else f"@{self.percent:g}%")


def ours_command(
    pack: Path,
    way: StreamedArchitecture,
    inputs: Mapping[str, NDArray[Any]],
    threads: int,
    folder: Path,
) -> list[str]:
    """Return the command of a process that answers ``inputs``, which go to ``folder``."""
    file = save_inputs(inputs, folder)
    limit = "-" if way.percent is None else str(way.percent)
    arguments = str(pack), way.architecture, limit, str(file), str(threads)
    return python_command("pipeline.benchmark.ours", *arguments)


def open_ours(path: Path, way: StreamedArchitecture, inputs: Tensors, threads: int) -> Ours:
    """Open the pack in ``path``."""
    device = CpuDevice(threads)
    program = prepare(open_pack(path), device)
    plan = plan_way(program, way, device)
    return Ours(open_engine(program, plan, device, ReadPool()), inputs)


def plan_way(program: Program, way: StreamedArchitecture, device: Device) -> Plan:
    """Return the plan of ``way`` for ``program``, prepared for ``device``, on its profile if it has one."""
    pack, percent = program.pack, way.percent
    limit = None if percent is None else int(program.weight_bytes * percent / 100)
    try:
        profile: Profile | None = load_profile(pack, this_machine(pack.weights_path, device))
    except ProfileError:
        profile = None
    architecture = ARCHITECTURES[way.architecture]
    known = plans_of(pack)
    plan = fit(program, architecture, Wanted(weight_bytes=limit), profile, known).plan
    known.save()
    return plan


def main() -> None:
    """Load the pack and obey."""
    claim_process()
    path, architecture, percent, inputs, threads = sys.argv[1:]
    way = StreamedArchitecture(architecture, None if percent == "-" else float(percent))
    opened: list[Ours] = []

    def load() -> Answer:
        opened.append(open_ours(Path(path), way, load_inputs(Path(inputs)), int(threads)))
        return opened[0].answer

    serve(load, lambda: opened[0].settle())  # noqa: PLW0108  it is not open yet


if __name__ == "__main__":
    main()
