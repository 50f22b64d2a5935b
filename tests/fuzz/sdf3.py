"""Fuzz the reader of SDF3's files: ``python -m tests.fuzz.sdf3 [seconds] [first example] [--minutes N]``.

Each example damages the XML of a CSDF graph, as text or attribute by attribute, reads it, and finds its
smallest buffers. Both may refuse it with DataflowError; what is accepted must come back from its own XML,
and its buffers must let it run. Anything else ends the run with the example's number.
"""

import random
import re
import sys
import tempfile
from pathlib import Path

from models.network.windows import Window
from papers.cnn.layers import Cnn, CnnLayer, Edge, Shape
from papers.dataflow.consistency import firings
from papers.dataflow.conversion import WindowOverlap, convert
from papers.dataflow.csdf import DataflowError
from papers.dataflow.schedules import moments, schedule
from papers.dataflow.sdf3 import read_sdf3, sdf3_text
from papers.dataflow.smallest_buffers import small_buffers
from tests.fuzz.pack import change_bytes, chosen_run, run_examples

_MOST_FIRINGS = 3000
_ATTRIBUTE = re.compile(r'"[^"<>]*"')
_TAG = re.compile(r"<[^<>]*>\s*")
_VALUES = (
    *("", "0", "1", "2", "7", "-1", "1,2", "0,0", "3*2", "2*0,1", "1,", ",", "1;2", " 3 ", "00"),
    *("9" * 14, "9" * 30, "9" * 5000, "9999999*1", "\u0663", "\u202e", "é" * 300, "&#27;[0m"),
    *("&lt;", "&a;", "&#0;", "1e3", "0x1", "in", "out", "x0", "x1", "in0", "out0", "csdf", "true"),
)


def drawn_text(rng: random.Random) -> str:
    """Return the XML of a small CNN."""
    height = rng.randint(3, 9)
    layers = [CnnLayer("x0", "input", Shape(height, 2, 1))]
    edges = []
    for number in range(1, rng.randint(2, 6)):
        window = Window(rng.randint(1, 3), 1, before=1, behind=1)
        layers.append(CnnLayer(f"x{number}", "conv", Shape(height, 2, rng.randint(1, 2)), window))
        edges += [Edge(source, number) for source in {number - 1, rng.randrange(number)}]
    return sdf3_text(
        convert(Cnn("g", tuple(layers), tuple(edges)), rng.choice(list(WindowOverlap)))
    )


def damaged(text: str, rng: random.Random) -> str:
    """Change an attribute, or leave out, repeat or move an element."""
    found = list((_ATTRIBUTE if rng.random() < 0.7 else _TAG).finditer(text))
    one, other = rng.choice(found), rng.choice(found)
    if one.group().startswith('"'):
        new = other.group() if rng.random() < 0.5 else f'"{rng.choice(_VALUES)}"'
    else:
        new = rng.choice(("", 2 * one.group(), other.group()))
    return text[: one.start()] + new + text[one.end() :]


def attempt(path: Path) -> bool:
    """Read the file and find its buffers; return whether it was accepted."""
    try:
        graph = read_sdf3(path)
        counts = firings(graph)
    except DataflowError as exc:
        if not str(exc).isprintable() or len(str(exc)) > 1000:
            raise AssertionError(f"not one short line: {str(exc)!r}") from exc
        return False
    again = path.with_suffix(".again")
    again.write_text(sdf3_text(graph), "utf-8")
    if read_sdf3(again) != graph:
        raise AssertionError("it does not come back")
    if sum(counts) < _MOST_FIRINGS:
        buffers = small_buffers(graph, counts, nodes=20)
        for _ in moments(
            graph, counts, buffers.capacities, schedule(graph, counts, buffers.capacities)
        ):
            pass
    return True


class Sdf3Fuzzer:
    """Damages files in ``folder``; example ``number`` is always the same."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / "g.xml"

    def run(self, number: int) -> bool:
        """Damage and read; return whether it was accepted."""
        rng = random.Random(number)
        text = drawn_text(rng)
        for _ in range(rng.choice((0, 1, 1, 2, 3))):
            text = damaged(text, rng)
        data = text.encode()
        if rng.random() < 0.2:
            data = change_bytes(data, rng)
        self._path.write_bytes(data)
        return attempt(self._path)


def main(arguments: list[str]) -> int:
    seconds, first = chosen_run(arguments)
    with tempfile.TemporaryDirectory() as name:
        return run_examples(Sdf3Fuzzer(Path(name)).run, seconds, first)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
