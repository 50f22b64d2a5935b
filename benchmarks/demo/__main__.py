"""Run the demonstration: ``python -m benchmarks.demo [--picture FILE.svg]``; exit 1 where it fails.

As root the limit is a memory cgroup's. Other users cannot make one: there all that each takes is measured
and compared with the limit. Everything is made in a folder below build/ that is removed at the end.
"""

import argparse
import shutil
import signal
import sys
import tempfile
import textwrap
import time
from pathlib import Path

from benchmarks.demo import story, terminal
from benchmarks.demo.picture import svg
from benchmarks.demo.play import LIMIT, TITLE, Played, free_memory, play

_BUILD = Path(__file__).resolve().parents[2] / "build"
_PICTURE = _BUILD / "memory.svg"
_NEED_MEMORY, _NEED_DISK = 2_500_000_000, 2_500_000_000
_WIDTH = 79

_INTRODUCTION = """
Layerstream serves neural networks in less memory than their weights take. The weights stay on the disk and
stream, piece by piece, through a small buffer while the network computes. Here a network of 575 MB gets
200 MB of memory, interpreter, libraries and page cache included; three servers try it with the same
requests.
"""


def _say(text: str) -> None:
    print(text, flush=True)


def _report(played: Played) -> list[str]:
    """Return what is printed at the end, below the charts."""
    found = story.error(played.rows[-1].attempt, played.reference)
    lines = ["", *story.table(played.rows, LIMIT), ""]
    lines += textwrap.wrap(
        " ".join(story.conclusion(played.rows, played.weights, played.reference)), _WIDTH
    )
    if found is not None:
        lines.append(
            f"Largest difference of the answers, relative to the largest number: {found:.0e}."
        )
    lines.append(
        f"A small network trained on photographs sees in models/default/cat.png: {played.label}"
        f" ({played.probability:.0%})."
    )
    return lines


def _measure(folder: Path) -> Played:
    began = time.monotonic()
    return play(folder, lambda text: _say(f"[{time.monotonic() - began:4.1f} s] {text}"))


def main() -> None:
    """Play, print, draw."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.demo", description=__doc__)
    parser.add_argument("--picture", type=Path, default=_PICTURE)
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    _BUILD.mkdir(exist_ok=True)
    if free_memory() < _NEED_MEMORY or shutil.disk_usage(_BUILD).free < _NEED_DISK:
        sys.exit(
            "the demonstration needs 2.5 GB of free memory (for the other servers) and 2.5 GB of disk"
        )
    _say(textwrap.fill(_INTRODUCTION.strip(), _WIDTH) + "\n")
    with tempfile.TemporaryDirectory(dir=_BUILD, prefix="demo-") as folder:
        played = _measure(Path(folder))
    if played.why_not:
        _say(f"\nNo limit can be set here ({played.why_not}): what each takes is compared with it.")
    _say("")
    for line in [
        *terminal.chart(played.rows, terminal.marks_for(sys.stdout.encoding)),
        *_report(played),
    ]:
        _say(line)
    title = f"{TITLE}, {played.weights / 1e6:.0f} MB of weights, in {LIMIT / 1e6:.0f} MB of memory"
    options.picture.write_text(svg(played.rows, title), encoding="utf-8")
    _say(f"Picture: {options.picture}")
    found = story.error(played.rows[-1].attempt, played.reference)
    if told := story.faults(played.rows, found, played.label):
        sys.exit("\n".join(f"the claim does not hold: {fault}" for fault in told))


if __name__ == "__main__":
    main()
