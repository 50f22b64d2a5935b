"""Players of frames: partitions, and the whole network; in processes of their own."""

import threading
import time
from collections.abc import Callable
from contextlib import ExitStack
from hashlib import sha256
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from loader.cores import cores_for, pinned
from loader.pool.pool import ReadPool
from models.packs.pack import open_pack
from models.runtime.sessions import claim_process
from pipeline.devices.cpu import CpuDevice
from pipeline.execution.answering import Answering
from pipeline.execution.opened import open_pipeline, opened
from pipeline.fitting.fit import fit
from pipeline.fitting.partitioned import fit_partitions
from pipeline.fitting.wanted import Wanted
from pipeline.planning.plan import PipelinePlan, Plan
from pipeline.program.prepare import prepare
from pipeline.program.program import Program
from pipeline.schedule.architectures import ARCHITECTURES

_UNLIMITED_BYTES = 1 << 62
_AUTO = ARCHITECTURES["auto"]
#: Plays a stream of so many frames; returns a digest of all answers.
Player = Callable[[int], str]


def child(
    parent: Connection,
    folder: Path,
    workers: int,
    budget_mib: float | None,
    names: tuple[str, ...],
    threads: int,
) -> None:
    """Play what the parent asks for, in a process with ``threads`` threads."""
    claim_process()
    device = CpuDevice(threads)
    program = prepare(open_pack(folder), device)
    budget = None if budget_mib is None else int(budget_mib * (1 << 20))
    cores = cores_for(workers) or cores_for(1) * workers
    with ExitStack() as stack:
        pool = ReadPool()
        stack.callback(pool.close)
        players: dict[str, Player] = {}
        facts: dict[str, Any] = {}
        for name in names:
            if name == "workers":
                engine, plan = _workers(stack, program, device, pool, (workers, budget))
            else:
                engine, plan = _whole(stack, program, device, pool, budget)
            on = {"workers": (), "one": cores[:1], "threads": cores}[name]
            players[name] = _player(engine, program, on)
            facts[f"{name}_memory"] = plan.memory
            if isinstance(plan, PipelinePlan):
                facts |= {"cuts": plan.cuts, "edge_bytes": plan.edge_bytes}
        parent.send(facts)
        while (asked := parent.recv()) is not None:
            name, frames = asked
            began = time.perf_counter()
            digest = players[name](frames)
            parent.send((time.perf_counter() - began, digest))


def _whole(
    stack: ExitStack, program: Program, device: CpuDevice, pool: ReadPool, budget: int | None
) -> tuple[Answering, Plan]:
    plan = fit(program, _AUTO, Wanted(total_bytes=budget or _UNLIMITED_BYTES)).plan
    return stack.enter_context(opened(program, plan, device, pool)), plan


def _workers(
    stack: ExitStack,
    program: Program,
    device: CpuDevice,
    pool: ReadPool,
    asked: tuple[int, int | None],
) -> tuple[Answering, Plan]:
    workers, budget = asked
    plan = fit_partitions(program, _AUTO, workers, budget or _UNLIMITED_BYTES).plan
    assert isinstance(plan, PipelinePlan)
    cores = cores_for(workers)
    pipeline = open_pipeline(program, plan, [device] * workers, pool, cores=cores)
    stack.callback(pipeline.close)
    return pipeline, plan


def _player(engine: Answering, program: Program, cores: tuple[int, ...]) -> Player:
    """Return a player of a stream of frames, as many at once as ``engine`` takes."""
    inputs = [_inputs(program, seed) for seed in range(4)]

    def play(frames: int) -> str:
        digests = [""] * frames
        line = iter(range(frames))
        taking = threading.Lock()

        def carry() -> None:
            with pinned(cores):
                while True:
                    with taking:
                        frame = next(line, None)
                    if frame is None:
                        return
                    digests[frame] = engine.answer(inputs[frame % len(inputs)], _digest)[0]

        threads = [threading.Thread(target=carry) for _ in range(engine.callers)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return sha256("".join(digests).encode()).hexdigest()

    return play


def _digest(outputs: Any) -> str:
    whole = sha256()
    for name in sorted(outputs):
        whole.update(np.ascontiguousarray(outputs[name]).tobytes())
    return whole.hexdigest()


def _inputs(program: Program, seed: int) -> dict[str, NDArray[Any]]:
    generator = np.random.default_rng(seed)
    return {
        port.name: generator.standard_normal(port.shape).astype(port.dtype)
        for port in program.inputs
    }
