"""What is written in C: names and numbers from untrusted packs, and the functions that a network uses."""

import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Set
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pipeline.export_c.lowering.functions import BLOCKS

C_TYPES = {"float32": "float", "int8": "int8_t", "uint8": "uint8_t", "int32": "int32_t"}
_PER_LINE = 8

_OTHERS = re.compile(r"[^0-9A-Za-z_]+")
#: Files of C's library, and the names that come from them.
INCLUDES: Mapping[str, Set[str]] = {
    "float.h": {"FLT_MAX"},
    "math.h": {"expf", "fmodf", "INFINITY"},
    "string.h": {"memcpy", "memset"},
}
# C11's keywords, C++'s that a header would meet, and what our own files say.
_WORDS = """
    auto break case char const continue default do double else enum extern float for goto if inline
    int long register restrict return short signed sizeof static struct switch typedef union unsigned
    void volatile while asm bool catch class delete explicit export false friend mutable namespace
    new operator private protected public template this throw true try typename using virtual and or
    not xor arena buffer read context first count row rows pixels camera crc32_of check error size
    NULL NAN
"""
_RESERVED = frozenset(_WORDS.split()).union(*INCLUDES.values())
# Headers of C: files called like these would hide them.
_STANDARD = """
    assert complex ctype errno fenv float inttypes iso646 limits locale math setjmp signal stdalign
    stdarg stdatomic stdbool stddef stdint stdio stdlib stdnoreturn string tgmath threads time uchar
    wchar wctype
"""
_HEADERS = frozenset(_STANDARD.split())
_LONGEST = 48
# Weights and structs.
_OURS = re.compile(r"[wg]\d+")


def identifier(text: str, taken: Collection[str] = ()) -> str:
    """Return an identifier like ``text`` that is none of ``taken``, in any case, and not reserved."""
    plain = _OTHERS.sub("_", text).strip("_")[:_LONGEST] or "network"
    if not plain[0].isalpha():
        plain = f"n{plain}"
    name, number = plain, 2
    if name in _RESERVED or _OURS.fullmatch(name) or is_header(name):
        name = plain = f"{plain}_"
    others = {other.upper() for other in taken}  # macros are in capitals
    while name.upper() in others:
        name, number = f"{plain}_{number}", number + 1
    return name


def is_identifier(text: str) -> bool:
    """Return whether ``text`` can be the beginning of names in C as it is."""
    return re.fullmatch(r"[A-Za-z][0-9A-Za-z_]*", text) is not None and len(text) <= _LONGEST


def is_header(text: str) -> bool:
    """Return whether ``text``.h is a header of C, whatever its capitals."""
    return text.lower() in _HEADERS


def comment(text: str) -> str:
    """Return ``text`` as part of a comment in ASCII: it does not end it, nor go on in the next line."""
    plain = "".join(c if c.isascii() and c.isprintable() else "?" for c in text)
    return plain.replace("*/", "* /").replace("/*", "/ *").replace("\\", "/").replace("??", "?.")


def number(value: float) -> str:
    """Return the 32-bit float ``value`` as C writes it, exactly: the shortest digits that mean it."""
    if not np.isfinite(value):
        return {np.inf: "INFINITY", -np.inf: "-INFINITY"}.get(value, "NAN")
    text = str(np.float32(value))
    return f"{text}f" if "." in text or "e" in text else f"{text}.0f"


def lines(array: NDArray[Any]) -> Iterator[str]:
    """Yield the elements of ``array`` as C writes them, a few a line: floats exactly, in nine digits."""
    flat = array.reshape(-1)
    floats = flat.dtype.kind == "f"
    if floats and not np.isfinite(flat).all():
        yield from (f"{number(value)}," for value in flat)
        return
    form = "%.8ef" if floats else "%d"
    whole = len(flat) // _PER_LINE * _PER_LINE
    line = ", ".join([form] * _PER_LINE) + ","
    for row in flat[:whole].reshape(-1, _PER_LINE).tolist():
        yield line % tuple(row)
    yield from (f"{form % value}," for value in flat[whole:].tolist())


# The C functions that a network uses, and no other: the files of kernels/ in blocks, by name.
#
# A block is what stands between two empty lines: one struct, type or function, with its comment. It needs
# the blocks whose names stand in it, and these come before it in the order of the files.

_FOLDER = Path(__file__).resolve().parents[1] / "kernels"
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
    definitions = {}
    for file, names in BLOCKS.items():
        texts = (_FOLDER / f"{file}.c").read_text("ascii").strip().split("\n\n")
        for name, text in zip(names, texts, strict=True):
            words = frozenset(_WORD.findall(_COMMENT.sub(" ", text)))
            # None names what is behind it: so no name can be another block's.
            assert name in words, (file, name)
            definitions[name] = Definition(name, text.strip(), words)
    return definitions


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
