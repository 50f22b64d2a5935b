"""Run the demonstrations: ``python -m benchmarks.demo [detect | memory]``; exit 1 where one fails.

``detect``: the shipped detector is served, what it finds is drawn. ``memory``: a large network in little
memory: as root the limit is a memory cgroup's. Other users cannot make one: there all that each takes is
measured and compared with the limit. Everything is made in a folder below build/ that is removed.
"""

import argparse
import shutil
import signal
import sys
import tempfile
import textwrap
import time
from pathlib import Path

from benchmarks.demo import detect, story
from benchmarks.demo.picture import svg
from benchmarks.demo.play import LIMIT, REQUESTS, TITLE, DemoResult, free_memory, play
from benchmarks.servers.contenders import RESIDENT

_BUILD = Path(__file__).resolve().parents[2] / "build"
_CELLS, _MEMORY = _BUILD / "cells.png", _BUILD / "memory.svg"
_NEED_MEMORY, _NEED_DISK = 2_500_000_000, 2_500_000_000
_WIDTH = 79
_ONLY_COMPARED = """
This user cannot set a limit ({why}), so nobody is killed: each server takes what it wants, and that is
compared with the limit.
"""

_INTRODUCTION = f"""
Layerstream serves neural networks in less memory than their weights take. The weights stay on the disk and
stream, piece by piece, through a small buffer while the network computes. Here a network of 575 MB,
{TITLE}, gets {LIMIT / 1e6:.0f} MB of memory, interpreter, libraries and page cache included. Three
servers try it with the same requests.
"""


def _say(text: str) -> None:
    print(text, flush=True)


def _wrap(text: str) -> str:
    return textwrap.fill(text.strip(), _WIDTH)


def _report(played: DemoResult) -> list[str]:
    """Return what is printed at the end."""
    sentences = story.conclusion(played.rows, played.weights, played.reference)
    if played.error is not None:
        sentences.append(
            f"Their answers and ours differ by {played.error:.0e} of the largest number."
        )
    sentences += sorted({row.attempt.caveat for row in played.rows} - {""})
    table = story.table(played.table, REQUESTS)
    return ["", *table, "", _wrap(" ".join(sentences))]


def _picture(played: DemoResult) -> str:
    room = "compared with" if played.why_not else "in"
    title = (
        f"{TITLE}, {played.weights / 1e6:.0f} MB of weights, {room} {LIMIT / 1e6:.0f} MB of memory"
    )
    need = played.reference.figures["anonymous_peak_bytes"] / 1e6
    return svg(
        played.rows, title, {RESIDENT: "" if played.why_not else f" (it takes {need:,.0f} MB)"}
    )


def _measure(folder: Path) -> DemoResult:
    began = time.monotonic()
    return play(folder, lambda text: _say(f"[{time.monotonic() - began:4.1f} s] {text}"))


def main() -> None:
    """Play what is asked for, or all."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.demo", description=__doc__)
    shown = {"detect": _detected, "memory": _in_memory}
    parser.add_argument("what", nargs="?", choices=tuple(shown))
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    _BUILD.mkdir(exist_ok=True)
    for play_one in [shown[options.what]] if options.what else shown.values():
        play_one()


def _detected() -> None:
    """Serve the detector, draw."""
    with tempfile.TemporaryDirectory(dir=_BUILD, prefix="demo-") as folder:
        found = detect.detect(Path(folder))
    _say(_wrap(detect.sentence(found)))
    detect.draw(found, _CELLS)
    _say(f"Picture: {_CELLS}\n")
    if not found.boxes:
        sys.exit("the detector finds nothing in its photograph")


def _in_memory() -> None:
    """Measure, print, draw."""
    if free_memory() < _NEED_MEMORY or shutil.disk_usage(_BUILD).free < _NEED_DISK:
        sys.exit("the demonstration needs 2.5 GB of free memory (the other servers do) and of disk")
    _say(_wrap(_INTRODUCTION) + "\n")
    with tempfile.TemporaryDirectory(dir=_BUILD, prefix="demo-") as folder:
        played = _measure(Path(folder))
    if played.why_not:
        _say("\n" + _wrap(_ONLY_COMPARED.format(why=played.why_not)))
    _say("\n".join(_report(played)))
    _MEMORY.write_text(_picture(played), encoding="utf-8")
    _say(f"Picture: {_MEMORY}")
    if told := story.faults(played.rows, played.error):
        sys.exit("\n".join(f"the claim does not hold: {fault}" for fault in told))


if __name__ == "__main__":
    main()
