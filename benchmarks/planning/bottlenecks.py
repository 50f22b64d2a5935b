"""Bottlenecks in groups of channels: memory of activations and delay, beside the network whole.

All of a pack's bottlenecks run in groups of up to so many channels, in so many bands of rows; no other
part runs on rows. Weights stay in memory, so all that differs are groups. Engines take turns; delays are
medians.

Run as ``python -m benchmarks.planning.bottlenecks PACK... [--channels 16,32,64] [--bands 1,4,8]
[--rounds 20] [--json]``. Exit 1 where an answer is further from the whole's than 1e-5 of its largest value.
"""

import argparse
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.engines import Engines
from benchmarks.turns import end, in_turns
from models.packs.pack import open_pack
from models.packs.records.row_parts import Bottleneck
from models.runtime.sessions import claim_process
from pipeline.benchmark.run import relative_error
from pipeline.devices.cpu import CpuDevice
from pipeline.execution.engine import Engine
from pipeline.execution.given import copies
from pipeline.measuring.sweeps import random_inputs
from pipeline.planning.make import make_plan
from pipeline.planning.plan import Choice
from pipeline.program.prepare import prepare
from pipeline.program.program import Program
from pipeline.program.region_plan import ChannelCut, Region, RegionError
from pipeline.program.steps import planned_region
from pipeline.schedule.architectures import ARCHITECTURES

_MOST_ERROR = 1e-5
_COLUMNS = (
    ("pack", 24),
    ("channels", 9),
    ("bands", 6),
    ("arena MB", 10),
    ("share", 7),
    ("ms", 8),
    ("ratio", 7),
    ("error", 9),
)
_HEAD = "".join(f"{name:>{width}}" for name, width in _COLUMNS)


def main() -> None:
    """Measure each pack; print a table or JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("packs", type=Path, nargs="+")
    parser.add_argument("--channels", type=_numbers, default=[16, 64])
    parser.add_argument("--bands", type=_numbers, default=[1, 8])
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    claim_process()
    rows = [
        row
        for path in options.packs
        for row in measure(path, options.channels, options.bands, options.rounds)
    ]
    held = all(row["error"] <= _MOST_ERROR for row in rows)
    end(rows, held, None if options.json else [_HEAD, *map(_line, rows)])


def _numbers(text: str) -> list[int]:
    return [int(part) for part in text.split(",")]


def measure(path: Path, channels: list[int], bands: list[int], rounds: int) -> list[dict[str, Any]]:
    """Return a row for the whole network, and one for each size of groups and number of bands."""
    device = CpuDevice()
    program = prepare(open_pack(path), device)
    inputs = random_inputs(program)
    kinds = [(0, 0), *((each, count) for each in channels for count in bands)]
    with Engines(device) as opened:
        engines: list[Engine] = []
        for each, count in kinds:
            regions = tuple(in_groups(program, each, count)) if each else ()
            plan = make_plan(program, ARCHITECTURES["pre"], choice=Choice(regions=regions))
            engines.append(opened.open(program, plan))
        players = {
            str(number): partial(engine.answer, inputs, copies)
            for number, engine in enumerate(engines)
        }
        found = list(in_turns(players, rounds, warm_up=1).values())
    answers = [runs[0][0] for runs in found]
    seconds = [median(run.delay_seconds for _, run in runs) for runs in found]
    return [
        {
            "pack": program.name,
            "channels": kind[0],
            "bands": kind[1],
            "arena_bytes": engine.plan.arena_bytes,
            "session_bytes": engine.plan.session_bytes,
            "whole_bytes": engines[0].plan.arena_bytes,
            "seconds": taken,
            "whole_seconds": seconds[0],
            "error": relative_error(answer, answers[0]),
        }
        for kind, engine, answer, taken in zip(kinds, engines, answers, seconds, strict=True)
    ]


def in_groups(program: Program, channels: int, count: int) -> Iterator[Region]:
    """Yield bottlenecks that share no piece in groups of up to so many channels, in ``count`` bands."""
    end = 0
    for item in program.bottlenecks:
        if item.first_piece >= end:
            yield _region(program, item, channels, count)
            end = item.end_piece


def _region(program: Program, item: Bottleneck, channels: int, count: int) -> Region:
    """Return a bottleneck in as many bands as are wanted; in one where all rows are needed at once."""
    size = max((each for each in item.sizes if each <= channels), default=item.sizes[0])
    rows = item.operators[-1].height
    whole = Region(item.first_piece, item.end_piece, ChannelCut(size, rows))
    banded = Region(item.first_piece, item.end_piece, ChannelCut(size, -(-rows // count)))
    try:
        planned_region(program, banded)
    except RegionError:
        return whole
    return banded


def _line(row: dict[str, Any]) -> str:
    sizes = f"{row['arena_bytes'] / 1e6:10.2f}{row['arena_bytes'] / row['whole_bytes']:7.2f}"
    times = f"{1e3 * row['seconds']:8.2f}{row['seconds'] / row['whole_seconds']:7.2f}"
    kind = f"{row['channels'] or 'all':>9}{row['bands'] or '':>6}"
    return f"{row['pack'][-24:]:>24}{kind}{sizes}{times}{row['error']:9.1e}"


if __name__ == "__main__":
    main()
