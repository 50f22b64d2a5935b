"""Names of strangers as identifiers of C and as words in comments; types and numbers as C writes them."""

import re
from collections.abc import Collection, Iterator, Mapping, Set
from typing import Any

import numpy as np
from numpy.typing import NDArray

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
