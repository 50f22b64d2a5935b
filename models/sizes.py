"""Sizes as people write them: 256MiB, 24 MB, 4194304; shapes of inputs: data=1,3,224,224."""

import re
from collections.abc import Iterable, Sequence
from typing import Any

#: What is wanted of an input: its shape, or several; of a dimension: its length, or several.
Lengths = tuple[int, ...] | tuple[tuple[int, ...], ...]

_WRITTEN = re.compile(r"\s*\+?(\d*\.?\d+)\s*([a-zA-Z]*)\s*")
#: Bytes of a unit, in small letters: b, k, kb, kib, mbit, ...
_UNITS = {
    f"{letter}{infix}{ending}": base**power / divisor
    for power, letter in enumerate(("", *"kmgtpe"))
    for infix, base in (("", 1000), ("i", 1024))[: power + 1]
    for ending, divisor in (("b", 1), ("bit", 8), ("", 1))
    if ending or (letter and not infix)
}
# A smaller number without a unit was hardly meant as bytes: users write 16 or 2048 for MiB.
_LEAST_BARE = 1 << 20


def parse_size(text: str) -> int:
    """Return the bytes that ``text`` names. A number without a unit is bytes if it is at least 1 MiB.

    Raises:
        ValueError: it is not a positive size, or a smaller number without a unit.
    """
    written = _WRITTEN.fullmatch(text)
    number, unit = written.groups() if written else ("", "")
    factor = _UNITS.get(unit.lower() or "b", 0.0)
    try:
        n_bytes = int(number) if factor == 1 and number.isdigit() else int(float(number) * factor)
    except (ValueError, OverflowError):  # no number, or one of thousands of digits
        n_bytes = 0
    if n_bytes < 1:
        raise ValueError(f"{text!r} is not a size; write 256MiB, 24MB or a number of bytes")
    if n_bytes < _LEAST_BARE and not any(character.isalpha() for character in text):
        number = text.strip()
        raise ValueError(f"{text!r} has no unit; write {number}MiB, {number}KiB or {number}B")
    return n_bytes


def parse_shapes(texts: Iterable[str]) -> dict[str, Lengths]:
    """Return the shapes that ``texts`` give inputs, by name; several, which semicolons part, in a tuple.

    Raises:
        ValueError: one is not NAME=1,3,224,224, or has no values.
    """
    shapes: dict[str, Lengths] = {}
    for text in texts:
        name, _, dims = text.rpartition("=")
        several = list(map(_parsed_shape, dims.split(";")))
        if not name or not all(several):
            raise ValueError(f"{text!r} is not NAME=1,3,224,224")
        if any(0 in shape for shape in several):
            raise ValueError(f"{text!r}: a dimension of 0 has no values")
        shapes[name] = several[0] if len(several) == 1 else tuple(several)
    return shapes


def lengths_of(shape: Sequence[Any]) -> Lengths:
    """Return ``shape``, or several, as of JSON or of a caller, as ``Lengths``."""
    if all(isinstance(length, int) for length in shape):
        return tuple(shape)
    return tuple(tuple(lengths) for lengths in shape)


def _parsed_shape(text: str) -> tuple[int, ...]:
    """Return the lengths of 1,3,224,224; none where ``text`` is no shape."""
    try:
        shape = tuple(int(dim) for dim in text.split(","))
    except ValueError:
        return ()
    return shape if min(shape) >= 0 else ()


def format_size(n_bytes: int) -> str:
    """Return ``n_bytes`` for people: 1.5 MiB."""
    unit, factor, digits = _unit(n_bytes)
    return f"{n_bytes / factor:.{digits}f} {unit}"


def format_least(n_bytes: int) -> str:
    """Return ``n_bytes`` rounded up, so that a user who types the text into a setting gives enough."""
    unit, factor, digits = _unit(n_bytes)
    parts = 10**digits
    rounded = -(-n_bytes * parts // factor)
    text = f"{rounded / parts:.{digits}f} {unit}"
    # A decimal fraction such as 0.1 may be a little less as a float than its text.
    enough = not n_bytes or parse_size(text) >= n_bytes
    return text if enough else f"{(rounded + 1) / parts:.{digits}f} {unit}"


def _unit(n_bytes: int) -> tuple[str, int, int]:
    """Return the unit for ``n_bytes``, its bytes, and how many decimals are shown."""
    if n_bytes < 1 << 10:
        return "B", 1, 0
    for unit, factor in (("KiB", 1 << 10), ("MiB", 1 << 20)):
        if n_bytes < factor << 10:
            return unit, factor, 1
    return "GiB", 1 << 30, 2
