"""Tables 4 to 7 and 13 of seed 000: networks of several precisions within the paper's memory, as plans run.

Each cell's megabytes are a limit of weights, arena and scratch, as the paper counts; the fastest plan
within it runs in a process of its own (benchmarks/children/precision.py), and its answer is compared with
that of the same pack with all in memory. A scheme is a pack: "none" as compiled, "half" with weights stored
as fp16 (``compile --store fp16``), "mixed" as int8 (``--store int8``), "int" computed with 8-bit integers
(``--precision int8 --calibrate DIR``). Cells of packs that are not given are left out. Memory of stored
weights is that of what they are expanded to. The pipelined application has two partitions at once, on a
core each: its fps are those of a stream of frames. Networks of one application answer one after the other.

Columns: the paper's megabytes (of Table 13 its limits, and the frames a second that it requires), ours as
planned, the least that any plan takes, what the engine has allocated, by how much the process grew
(sessions, bindings and copies of answers, too), delay, frames a second, and the error.

Run as ``python -m benchmarks.planning.precisions [--mobilenetv2 none=PACK half=PACK ...]
[--resnet50 none=PACK ...] [--tables 13] [--sweeps 20] [--json]``. Exit 1 where no plan fits, one takes more
than was planned, or answers differ by more than 1e-5 of the largest value.
"""

import argparse
import json
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

SCHEMES = ("none", "half", "mixed", "int")
_MB = 1_000_000
_MOST_ERROR = 1e-5


@dataclass(frozen=True)
class PaperTable:
    """A table of the paper, or an application: its networks, and megabytes by scheme that they take.

    ``fps``: frames a second that the paper requires of it. ``partitions``: of each network, at once.
    """

    name: str
    networks: tuple[str, ...]
    megabytes: tuple[float, ...]
    fps: float | None = None
    partitions: int = 1


_MOBILENET = ("mobilenetv2",)
TABLES = (
    PaperTable("4: quantised", _MOBILENET, (58.63, 29.3, 21.54, 14.65)),
    PaperTable("5: and buffers reused", _MOBILENET, (20.32, 10.16, 7.46, 5.08)),
    PaperTable("6: and by parts", _MOBILENET, (16.2, 8.1, 4.61, 4.04)),
    PaperTable("7: the paper's method", _MOBILENET, (15.93, 7.96, 4.47, 3.98)),
    PaperTable("13: MobileNet-sequential", _MOBILENET, (8.0,) * 4, 75),
    PaperTable("13: ResNet-sequential", ("resnet50",), (26.0,) * 4, 75),
    PaperTable("13: MobileNet-pipelined", _MOBILENET, (30.0,) * 4, 80, partitions=2),
    PaperTable("13: Multi-CNN", ("mobilenetv2", "resnet50"), (30.0,) * 4, 32),
)
_HEAD = (
    f"{'table':<26}{'scheme':<8}{'paper':>8}{'wanted':>7}{'MB':>8}{'least':>8}{'held':>8}{'grown':>8}"
    f"{'ms':>9}{'fps':>7}{'error':>9}"
)

#: Packs by scheme, by network.
_Packs = Mapping[str, Mapping[str, Path]]


def main() -> None:
    """Run every cell that has its packs; print a table or JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    form = "SCHEME=PACK"
    parser.add_argument("--mobilenetv2", type=_pack, nargs="*", default=[], metavar=form)
    parser.add_argument("--resnet50", type=_pack, nargs="*", default=[], metavar=form)
    parser.add_argument("--tables", default="", help="only those whose names begin so")
    parser.add_argument("--sweeps", type=int, default=20)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    given = {"mobilenetv2": dict(options.mobilenetv2), "resnet50": dict(options.resnet50)}
    if not options.json:
        print(_HEAD)
    rows = []
    for row in cells(given, options.tables, options.sweeps):
        rows.append(row)
        if not options.json:
            print(_line(row), flush=True)
    if options.json:
        print(json.dumps(rows, indent=2))
    sys.exit(0 if all(map(_is_right, rows)) else 1)


def _pack(text: str) -> tuple[str, Path]:
    scheme, _, path = text.partition("=")
    if scheme not in SCHEMES or not path:
        raise argparse.ArgumentTypeError(f"{text!r}: expected one of {', '.join(SCHEMES)}=PACK")
    return scheme, Path(path)


def _is_right(row: dict[str, Any]) -> bool:
    if "planned" not in row:
        return False
    return bool(row["error"] <= _MOST_ERROR and row["allocated"] <= row["planned"])


def cells(given: _Packs, tables: str, sweeps: int) -> Iterator[dict[str, Any]]:
    """Yield a row for each cell of ``tables`` whose packs are all there; sizes in bytes."""
    for table in TABLES:
        for scheme, limit in zip(SCHEMES, table.megabytes, strict=True):
            packs = [given[name].get(scheme) for name in table.networks]
            if None in packs or not table.name.startswith(tables):
                continue
            job = {
                "packs": [str(path) for path in packs],
                "bytes": int(limit * _MB),
                "partitions": table.partitions,
                "sweeps": sweeps,
            }
            row = {"table": table.name, "scheme": scheme, "paper": job["bytes"], "fps": table.fps}
            yield row | _run(job)


def _run(job: dict[str, Any]) -> dict[str, Any]:
    """Return what a process of its own says of the cell ``job``."""
    with tempfile.TemporaryDirectory() as folder:
        asked, told = Path(folder) / "job.json", Path(folder) / "result.json"
        asked.write_text(json.dumps(job), "utf-8")
        command = [sys.executable, "-m", "benchmarks.children.precision", str(asked), str(told)]
        subprocess.run(command, check=True)
        found: dict[str, Any] = json.loads(told.read_text("utf-8"))
        return found


def _line(row: dict[str, Any]) -> str:
    wanted = "" if row["fps"] is None else f"{row['fps']:g}"
    start = f"{row['table']:<26}{row['scheme']:<8}{row['paper'] / _MB:8.2f}{wanted:>7}"
    if "planned" not in row:
        return f"{start}{'none':>8}{row['least'] / _MB:8.2f}"
    sizes = "".join(
        f"{row[name] / _MB:8.2f}" for name in ("planned", "least", "allocated", "grown")
    )
    times = f"{1e3 * row['seconds']:9.2f}{1 / row['seconds']:7.1f}"
    return f"{start}{sizes}{times}{row['error']:9.1e}"


if __name__ == "__main__":
    main()
