"""Offsets of packs, and of problems in the format of MiniMalloc: bound, heuristic, search and their times.

A problem is a CSV file with the columns lower, upper and size (lives half-open), whose name may end with
its capacity, as in ``A.1048576.csv``. A pack gives the lives of its values. Each placement is validated.

Run as ``python -m benchmarks.planning.offsets PACK_OR_CSV... [--seconds 60]``.
"""

import argparse
import csv
import time
from collections.abc import Callable
from pathlib import Path

from models.packs.pack import open_pack
from pipeline.planning.offsets.problem import LiveBuffer, Placement, Problem, violations
from pipeline.planning.offsets.solve import place
from pipeline.program.lives import ALIGNMENT, lifetimes
from pipeline.program.program import Program

_HEAD = (
    "problem",
    "buffers",
    "bound",
    "heuristic",
    "seconds",
    "placed",
    "by",
    "optimal",
    "seconds",
)
_ROW = "{:28} {:>7} {:>12} {:>9} {:>8} {:>12} {:>9} {:>7} {:>8}"


def read_csv(path: Path) -> Problem:
    """Return the problem of a CSV file."""
    with path.open(newline="") as file:
        rows = list(csv.DictReader(file))
    buffers = (LiveBuffer(int(row["size"]), int(row["lower"]), int(row["upper"])) for row in rows)
    capacity = path.stem.rpartition(".")[2]
    return Problem(tuple(buffers), int(capacity) if capacity.isdecimal() else None)


def read_pack(path: Path) -> Problem:
    """Return the problem of a pack whose layers stay whole."""
    lives = lifetimes(Program.as_compiled(open_pack(path)))
    return Problem(tuple(LiveBuffer(one.n_bytes, one.start, one.end, ALIGNMENT) for one in lives))


def _timed(solve: Callable[[], Placement]) -> tuple[Placement, float]:
    start = time.perf_counter()
    placement = solve()
    return placement, time.perf_counter() - start


def _row(path: Path, seconds: float) -> str:
    problem = read_csv(path) if path.suffix == ".csv" else read_pack(path)
    fast, fast_seconds = _timed(lambda: place(problem, seconds=0))
    best, best_seconds = _timed(lambda: place(problem, seconds=seconds))
    found = violations(problem, fast) + violations(problem, best)
    if found:
        raise SystemExit(f"{path.name}: {found[0]}")
    return _ROW.format(
        path.name[:28],
        sum(buffer.takes_room for buffer in problem.buffers),
        fast.lower_bound_bytes,
        f"{fast.n_bytes / max(1, fast.lower_bound_bytes):.3f} x",
        f"{fast_seconds:.4f}",
        best.n_bytes,
        best.method,
        "yes" if best.optimal else "no",
        f"{best_seconds:.3f}",
    )


def main() -> None:
    """Print a line for each problem."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("paths", nargs="+", type=Path)
    parser.add_argument("--seconds", type=float, default=60.0, help="of each search, at most")
    options = parser.parse_args()
    print(_ROW.format(*_HEAD))
    for path in options.paths:
        print(_row(path, options.seconds), flush=True)


if __name__ == "__main__":
    main()
