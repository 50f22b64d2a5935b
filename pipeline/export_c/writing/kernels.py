"""The C functions that a network uses, and no other: the files of kernels/ in blocks, by name.

A block is what stands between two empty lines: one struct, type or function, with its comment. It needs the
blocks whose names stand in it, and these come before it in the order of the files.
"""

import re
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache
from pathlib import Path

_FOLDER = Path(__file__).resolve().parents[1] / "kernels"
_FILES = (
    "shared",
    "crc",
    "functions",
    "convolution",
    "bottleneck",
    "matrix",
    "pooling",
    "elements",
    "movement",
    "bytes",
    "convolution_of_bytes",
    "bottleneck_of_bytes",
)
_NAME = re.compile(
    r"^(?:struct (\w+) \{|typedef \w+ \(\*(\w+)\)|static [\w *]*?\b(\w+)\()", re.MULTILINE
)
_WORD = re.compile(r"\w+")
_COMMENT = re.compile(r"/\*.*?\*/", re.DOTALL)


@dataclass(frozen=True)
class Definition:
    """``text`` defines ``name``; ``words`` are the names in it, not those of its comments."""

    name: str
    text: str
    words: frozenset[str]


@cache
def blocks() -> dict[str, Definition]:
    """Return all blocks by name, in an order in which C takes them."""
    found = {}
    for file in _FILES:
        for text in (_FOLDER / f"{file}.c").read_text("ascii").strip().split("\n\n"):
            match = _NAME.search(text)
            assert match is not None, text
            name = match[1] or match[2] or match[3]
            found[name] = Definition(
                name, text.strip(), frozenset(_WORD.findall(_COMMENT.sub(" ", text)))
            )
    return found


def needed(names: Iterable[str]) -> list[Definition]:
    """Return the blocks ``names`` and all that they need, in order."""
    known = blocks()
    wanted, open_names = set(), list(names)
    while open_names:
        name = open_names.pop()
        if name not in wanted:
            wanted.add(name)
            open_names += known[name].words & known.keys()
    return [block for name, block in known.items() if name in wanted]
