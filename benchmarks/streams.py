"""How far a sweep is from its disk: beside all weights in memory, and beside its reads without kernels.

Four take turns: all weights in memory (``pre``), the plan with reads by C, the same by Python, and the
reads of the plan alone, by C, as they follow each other where no kernel keeps them waiting. Medians are
printed, and of each the voluntary context switches of the process and its CPU time for a sweep. The plan is
the one that is found without a profile.

Run as ``python -m benchmarks.streams PACK=SIZE... [--rounds 15]``; SIZE is of everything that the plan
takes, as 6MiB, or of its memory for weights, as 50%. Several packs are also run at once. Exit 1 where a
sweep with reads by C takes more than 1.15 of the larger of ``pre`` and the reads alone, 2 where there is no
reader in C.
"""

import argparse
import random
import resource
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from statistics import median

from benchmarks.engines import Engines, sweep
from loader.buffers import Buffer
from loader.native.library import ReaderLibrary, find_reader
from loader.pool.native import StreamRead
from loader.pool.pool import ReadPool
from loader.readers.files import open_reader
from loader.readers.interface import Range
from models.packs.pack import open_pack
from models.runtime.sessions import claim_process
from models.sizes import format_size, parse_size
from pipeline.devices.cpu import CpuDevice
from pipeline.execution.engine import Engine
from pipeline.execution.given import Arrays
from pipeline.execution.streaming import PassStream, StreamRunner
from pipeline.fitting.fit import fit
from pipeline.fitting.wanted import Wanted
from pipeline.measuring.sweeps import random_inputs
from pipeline.planning.make import make_plan
from pipeline.planning.plan import Plan
from pipeline.program.prepare import prepare
from pipeline.program.program import Program
from pipeline.schedule.architectures import ARCHITECTURES

_MAX_RATIO = 1.15
_WARM_UP = 3
_READS = "reads alone"
_CONCURRENT_PASSES = 4


@dataclass(frozen=True)
class PassCost:
    """One sweep; ``switches``: voluntary ones of the process."""

    seconds: float
    cpu_seconds: float
    switches: int


def measured(run_once: Callable[[], float]) -> PassCost:
    """Return what one sweep took, of which ``run_once`` returns the seconds."""
    before = resource.getrusage(resource.RUSAGE_SELF)
    seconds = run_once()
    after = resource.getrusage(resource.RUSAGE_SELF)
    return PassCost(
        seconds,
        after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime,
        after.ru_nvcsw - before.ru_nvcsw,
    )


def interleaved(
    players: Mapping[str, Callable[[], PassCost]], rounds: int
) -> dict[str, list[PassCost]]:
    """As ``in_turns``, in another order each round.

    On a busy machine who has just slept gets a core sooner than who has just computed.
    """
    costs_by_name: dict[str, list[PassCost]] = {name: [] for name in players}
    order, chance = list(players), random.Random(0)
    for index in range(-_WARM_UP, rounds):
        chance.shuffle(order)
        for name in order:
            played = players[name]()
            if index >= 0:
                costs_by_name[name].append(played)
    return costs_by_name


class StandaloneReads(ExitStack):
    """The reads of ``plan`` by C, with launches that do nothing."""

    def __init__(self, program: Program, plan: Plan) -> None:
        super().__init__()
        reader = open_reader(program.pack.weights_path)
        self.callback(reader.close)
        pool = self.enter_context(closing(ReadPool()))
        count, targets = len(plan.reads), [plan.buffers[read.buffer] for read in plan.reads]
        buffer = Buffer(max(target.end for target in targets))
        buffer.bytes[:] = 0

        def ranges(index: int) -> tuple[Range, ...]:
            spans = [program.spans[span] for span in plan.reads[index % count].spans]
            return tuple(Range(span.file_offset, span.file_length, span.checksum) for span in spans)

        def target(index: int) -> memoryview:
            chosen = targets[index % count]
            return buffer.bytes[chosen.offset : chosen.end].data

        reads = [
            StreamRead(ranges(index), target(index), after[-1])
            for index, after in enumerate(plan.stages[0].after)
        ]
        client = pool.client("reads alone", plan.choice.depth)
        stream = pool.stream(client, reader, reads, count)
        assert stream is not None
        self.callback(pool.forget, client)
        launches = [lambda: None] * len(plan.stages[1])
        self._runner = StreamRunner(
            plan.stages, PassStream(stream, lambda: stream.begin(None, False)), launches, "reads"
        )
        self.callback(self._runner.drain)

    def run_once(self) -> float:
        """Read all that a sweep reads; return the seconds."""
        started = time.perf_counter()
        self._runner.run()
        seconds = time.perf_counter() - started
        self._runner.drain()
        return seconds


@dataclass(frozen=True)
class StreamedModel:
    """A network and a plan that streams it, in two stages."""

    program: Program
    plan: Plan


def compare(streamed: StreamedModel, device: CpuDevice, rounds: int) -> float:
    """Print a table of the four; return what reads by C take beside the larger of ``pre`` and the reads."""
    program, plan = streamed.program, streamed.plan
    inputs = random_inputs(program.pack.manifest)
    with Engines(device) as by_c, Engines(device, native=False) as by_python, ExitStack() as stack:
        standalone = stack.enter_context(StandaloneReads(program, plan))
        resident = by_c.open(program, make_plan(program, ARCHITECTURES["pre"]))
        engines = {
            "pre": resident,
            "by C": by_c.open(program, plan),
            "by Python": by_python.open(program, plan),
        }

        def seconds_of(name: str) -> float:
            return sweep(engines[name], inputs).delay_seconds

        players = {name: partial(measured, partial(seconds_of, name)) for name in engines}
        costs_by_name = interleaved(
            {**players, _READS: partial(measured, standalone.run_once)}, rounds
        )
    print(
        f"{program.name}: {format_size(plan.total_bytes)} in all, {len(plan.reads)} reads "
        f"of {format_size(plan.read_bytes)}, {plan.stages[0].ahead} ahead, {plan.choice.depth} at once"
    )
    pre = median(cost.seconds for cost in costs_by_name["pre"])
    paired = _print(costs_by_name, pre)
    larger = max(pre, median(cost.seconds for cost in costs_by_name[_READS]))
    ratio = median(cost.seconds for cost in costs_by_name["by C"]) / larger
    print(f"by C beside Python: {paired:.3f} in a turn; beside the larger: {ratio:.2f}\n")
    return ratio


def compare_concurrent(models: Sequence[StreamedModel], device: CpuDevice, rounds: int) -> None:
    """Print what it takes to run each of ``models`` a few times, a thread each."""
    with Engines(device) as by_c, Engines(device, native=False) as by_python:
        engines = {
            name: [
                (opened.open(model.program, model.plan), random_inputs(model.program.pack.manifest))
                for model in models
            ]
            for name, opened in (("by C", by_c), ("by Python", by_python))
        }

        def run_all(name: str) -> float:
            def run(engine: Engine, inputs: Arrays) -> None:
                for _ in range(_CONCURRENT_PASSES):
                    engine.run(inputs)

            threads = [threading.Thread(target=run, args=pair) for pair in engines[name]]
            started = time.perf_counter()
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            seconds = time.perf_counter() - started
            for engine, _ in engines[name]:
                engine.settle()
            return seconds

        costs = interleaved(
            {name: partial(measured, partial(run_all, name)) for name in engines}, rounds
        )
    print(f"all at once, {_CONCURRENT_PASSES} passes each")
    python = median(cost.seconds for cost in costs["by Python"])
    print(f"by C beside Python: {_print(costs, python):.3f} in a turn\n")


def _print(costs_by_name: Mapping[str, Sequence[PassCost]], unit: float) -> float:
    """Print a table in milliseconds and as parts of ``unit``, s; return by C / by Python, in one turn."""
    print(f"|  | ms | of {1e3 * unit:.1f} | fastest tenth, ms | switches | CPU ms |")
    print("|---|---|---|---|---|---|")
    for name, costs in costs_by_name.items():
        seconds = median(cost.seconds for cost in costs)
        switches = median(cost.switches for cost in costs)
        cpu = median(cost.cpu_seconds for cost in costs)
        fastest = sorted(cost.seconds for cost in costs)[len(costs) // 10]
        print(
            f"| {name} | {1e3 * seconds:.1f} | {seconds / unit:.2f} | {1e3 * fastest:.1f} "
            f"| {switches:.0f} | {1e3 * cpu:.0f} |"
        )
    paired = [
        native.seconds / python.seconds
        for native, python in zip(costs_by_name["by C"], costs_by_name["by Python"], strict=True)
    ]
    return median(paired)


def main() -> None:
    """Compare each pack; exit 1 above the wanted ratio."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("packs", nargs="+", metavar="PACK=SIZE")
    parser.add_argument("--rounds", type=int, default=15)
    options = parser.parse_args()
    if not isinstance(find_reader(), ReaderLibrary):
        print(f"no reader in C: {find_reader()}", file=sys.stderr)
        sys.exit(2)
    claim_process()
    with closing(CpuDevice()) as device:
        models = []
        for pack in options.packs:
            folder, _, size = pack.partition("=")
            program = prepare(open_pack(Path(folder), device.target), device)
            if size.endswith("%"):
                n_bytes = sum(span.file_length for span in program.spans)
                constraints = Wanted(weight_bytes=int(n_bytes * float(size[:-1]) / 100))
            else:
                constraints = Wanted(total_bytes=parse_size(size))
            plan = fit(program, ARCHITECTURES["auto"], constraints).plan
            if not plan.reads or len(plan.stages) != 2:
                sys.exit(f"{pack}: its plan reads nothing, or copies what it reads")
            models.append(StreamedModel(program, plan))
        ratios = [compare(model, device, options.rounds) for model in models]
        if len(models) > 1:
            compare_concurrent(models, device, options.rounds)
    print(f"largest ratio {max(ratios):.2f} (wanted: at most {_MAX_RATIO})")
    sys.exit(max(ratios) > _MAX_RATIO)


if __name__ == "__main__":
    main()
