"""Tables 4 to 7 and 13 of seed 000: networks of several precisions within the paper's memory, as plans run.

Each cell's megabytes are a limit of weights, arena and scratch, as the paper counts; the fastest plan
within it runs, and its answer is compared with that of the same pack with all in memory. A scheme is a
pack: "none" as compiled, "half" with weights stored as fp16 (``compile --store fp16``), "mixed" as int8
(``--store int8``), "int" computed with 8-bit integers (``--precision int8 --calibrate DIR``). Cells of
packs that are not given are left out. Memory of stored weights is that of what they are expanded to.

Run as ``python -m benchmarks.planning.precisions [--mobilenetv2 none=PACK half=PACK ...]
[--resnet50 none=PACK ...] [--sweeps 20] [--json]``. Exit 1 where no plan fits, or answers differ by more
than 1e-5 of the largest value.
"""

import argparse
import json
import statistics
import sys
from collections.abc import Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from loader.pool.pool import ReadPool
from models.packs.pack import Pack, open_pack
from models.runtime.sessions import claim_process
from pipeline.devices.cpu import CpuDevice
from pipeline.execution.given import Arrays, copies
from pipeline.execution.opened import opened
from pipeline.fitting.fit import fit
from pipeline.fitting.wanted import LEAST, Wanted
from pipeline.measuring.sample_inputs import random_inputs
from pipeline.planning.make import make_plan
from pipeline.planning.plan import Plan
from pipeline.profiles.machine import this_machine
from pipeline.profiles.profile import Profile, ProfileError
from pipeline.profiles.profile_file import load_profile
from pipeline.schedule.architectures import ARCHITECTURES

SCHEMES = ("none", "half", "mixed", "int")
_MB = 1_000_000
_MOST_ERROR = 1e-5
_MOST_TRIES, _PAGE = 8, 64 << 10


@dataclass(frozen=True)
class Table:
    """A table of the paper: its networks, and megabytes by scheme that all of them take together."""

    name: str
    networks: tuple[str, ...]
    megabytes: tuple[float, ...]


_MOBILENET = ("mobilenetv2",)
TABLES = (
    Table("4: quantised", _MOBILENET, (58.63, 29.3, 21.54, 14.65)),
    Table("5: and buffers reused", _MOBILENET, (20.32, 10.16, 7.46, 5.08)),
    Table("6: and by parts", _MOBILENET, (16.2, 8.1, 4.61, 4.04)),
    Table("7: the paper's method", _MOBILENET, (15.93, 7.96, 4.47, 3.98)),
    Table("13: MobileNet-sequential", _MOBILENET, (8.0,) * 4),
    Table("13: ResNet-sequential", ("resnet50",), (26.0,) * 4),
    Table("13: Multi-CNN", ("mobilenetv2", "resnet50"), (30.0,) * 4),
)
_HEAD = (
    f"{'table':<26}{'scheme':<8}{'paper':>9}{'MB':>8}{'least':>9}{'ms':>9}{'fps':>7}{'error':>9}"
)

#: Packs by scheme, by network.
_Packs = Mapping[str, Mapping[str, Path]]


def main() -> None:
    """Run every cell that has its packs; print a table or JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    for name in ("mobilenetv2", "resnet50"):
        parser.add_argument(f"--{name}", type=_pack, nargs="*", default=[], metavar="SCHEME=PACK")
    parser.add_argument("--sweeps", type=int, default=20)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    claim_process()
    given = {"mobilenetv2": dict(options.mobilenetv2), "resnet50": dict(options.resnet50)}
    rows = list(cells(given, options.sweeps))
    print(json.dumps(rows, indent=2) if options.json else "\n".join([_HEAD, *map(_line, rows)]))
    sys.exit(0 if all(row["megabytes"] is not None for row in rows) and _are_close(rows) else 1)


def _pack(text: str) -> tuple[str, Path]:
    scheme, _, path = text.partition("=")
    if scheme not in SCHEMES or not path:
        raise argparse.ArgumentTypeError(f"{text!r}: expected one of {', '.join(SCHEMES)}=PACK")
    return scheme, Path(path)


def _are_close(rows: list[dict[str, Any]]) -> bool:
    return all(row["error"] is not None and row["error"] <= _MOST_ERROR for row in rows)


def cells(given: _Packs, sweeps: int) -> Iterator[dict[str, Any]]:
    """Yield a row for each cell of the tables whose networks are all there in its scheme."""
    for table in TABLES:
        for scheme, limit in zip(SCHEMES, table.megabytes, strict=True):
            packs = [given[name].get(scheme) for name in table.networks]
            held = [_Network(path) for path in packs if path is not None]
            if len(held) == len(packs):
                yield {"table": table.name, "scheme": scheme, "paper": limit} | _cell(
                    held, limit, sweeps
                )


class _Network:
    def __init__(self, path: Path) -> None:
        self.device = CpuDevice()
        self.pack: Pack = self.device.fitted(open_pack(path))
        self.profile = _profile(self.pack, self.device)
        self.least = fit(self.pack.manifest, ARCHITECTURES["auto"], LEAST, self.profile).plan

    def within(self, n_bytes: float) -> Plan | None:
        """Return the fastest plan whose weights, arena and scratch take at most so many bytes."""
        low, found = self.least.total_bytes, None
        total = most = int(n_bytes) + low - counted(self.least)
        for _ in range(_MOST_TRIES):
            if total < self.least.total_bytes:
                break
            wanted = Wanted(total_bytes=total, thorough=True)
            manifest, auto = self.pack.manifest, ARCHITECTURES["auto"]
            plan = fit(manifest, auto, wanted, self.profile).plan
            if counted(plan) <= n_bytes:
                low, found = total, plan
            else:
                most = total
            if low == total == most or most - low < _PAGE:
                break
            total = (low + most) // 2
        least = self.least if counted(self.least) <= n_bytes else None
        return found or least

    def run(self, plan: Plan, sweeps: int) -> tuple[Arrays, float]:
        """Return an answer and the median delay of ``sweeps``, seconds."""
        inputs = random_inputs(self.pack.manifest)
        with (
            closing(ReadPool()) as pool,
            opened(self.pack, plan, self.device, pool) as engine,
        ):
            answer, _ = engine.answer(inputs, copies)
            taken = [engine.answer(inputs, copies)[1].delay_seconds for _ in range(sweeps)]
        return answer, statistics.median(taken)


def _profile(pack: Pack, device: CpuDevice) -> Profile | None:
    try:
        return load_profile(pack, this_machine(pack.weights_path, device))
    except ProfileError:
        return None


def counted(plan: Plan) -> int:
    """Return what the paper counts of a plan: weights, arena and scratch, bytes."""
    return plan.weight_bytes + plan.arena_bytes + plan.scratch_bytes


def _cell(held: list[_Network], limit: float, sweeps: int) -> dict[str, Any]:
    """Return what plans of ``held`` take within ``limit`` megabytes together, and how long they answer."""
    least = [counted(network.least) for network in held]
    empty = {"megabytes": None, "least": sum(least) / _MB, "seconds": None, "error": None}
    shares = [limit * _MB * each / sum(least) for each in least]
    plans = [network.within(share) for network, share in zip(held, shares, strict=True)]
    found = [plan for plan in plans if plan is not None]
    if len(found) < len(held):
        return empty
    seconds, errors = 0.0, []
    for network, plan in zip(held, found, strict=True):
        whole = make_plan(network.pack.manifest, ARCHITECTURES["pre"])
        expected, _ = network.run(whole, 1)
        answer, took = network.run(plan, sweeps)
        seconds += took
        errors.append(_error(answer, expected))
    return empty | {
        "megabytes": sum(map(counted, found)) / _MB,
        "seconds": seconds,
        "error": max(errors),
    }


def _error(answer: Arrays, whole: Arrays) -> float:
    return max(
        float(np.abs(answer[name] - whole[name]).max() / np.abs(whole[name]).max())
        for name in whole
    )


def _line(row: dict[str, Any]) -> str:
    start = f"{row['table']:<26}{row['scheme']:<8}{row['paper']:9.2f}"
    if row["megabytes"] is None:
        return f"{start}{'none':>8}{row['least']:9.2f}"
    times = f"{1e3 * row['seconds']:9.2f}{1 / row['seconds']:7.1f}"
    return f"{start}{row['megabytes']:8.2f}{row['least']:9.2f}{times}{row['error']:9.1e}"


if __name__ == "__main__":
    main()
