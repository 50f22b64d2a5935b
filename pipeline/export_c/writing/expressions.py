"""Arguments of calls as text, and the constant structs that they point to."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from models.network.fields import Array
from pipeline.export_c.errors import ExportError
from pipeline.export_c.lowering.steps import (
    Argument,
    Band,
    Function,
    Named,
    Pointer,
    Record,
    Rows,
    Scratch,
    Source,
    Step,
    Weight,
)
from pipeline.export_c.memory import Memory, scratch_of
from pipeline.export_c.writing.api import C_TYPES
from pipeline.export_c.writing.weights import Load, Loads, Stored

_LARGEST = 2**31 - 1
_PER_LINE = 8


class Expressions:
    """Writes the arguments of steps; ``records`` has the structs that were needed, by their text."""

    def __init__(
        self,
        values: Mapping[str, Array],
        names: Mapping[str, str],
        memory: Memory,
        stored: Stored,
    ) -> None:
        self._values = values
        self._names = names
        self._memory = memory
        self._stored = stored
        self.records: dict[str, str] = {}

    def call(self, step: Step, loads: Loads | None, in_parts: bool) -> str:
        """Return the call of ``step``; ``in_parts``: for `count` filters from `first` on."""
        texts = [self._text(step, item, loads, in_parts) for item in step.all_arguments]
        return f"{step.kernel}({', '.join(texts)})"

    def source(self, step: Step, source: Source, first: Sequence[str]) -> str:
        """Return the call that brings the rows of an input; ``first``: its first arguments."""
        texts = [self._text(step, item, None, in_parts=False) for item in source.arguments]
        return f"{source.kernel}({', '.join((*first, *texts))})"

    def _text(self, step: Step, item: Argument, loads: Loads | None, in_parts: bool) -> str:
        match item:
            case Pointer(name, offset):
                text = self.pointer(name, offset)
            case Scratch():
                text = self._scratch(step, item)
            case Weight():
                text = self._weight(item, loads)
            case Record():
                text = f"&{self._record(step, item)}"
            case Function(name, given):
                text = ", ".join((name or "NULL", *map(number, given)))
            case Named(name):
                text = name
            case Rows(total):
                text = "first, count" if in_parts else f"0, {total}"
            case Band(total):
                text = "row, rows" if in_bands(step) else f"0, {total}"
            case int():
                text = self._whole(step, item)
            case _:
                text = "NULL" if item is None else number(item)
        return text

    def pointer(self, name: str, offset: int = 0) -> str:
        """Return where the value ``name`` lies, ``offset`` bytes behind its begin."""
        place = self._memory.places[name]
        base = "arena" if place.port is None else self._names[place.port]
        held = "float32" if place.port is None else self._values[place.port].dtype
        return _moved(base, held, self._values[name].dtype, place.offset + offset)

    def _scratch(self, step: Step, item: Scratch) -> str:
        assert step.bands is not None
        start = self._memory.places[scratch_of(step)].offset
        return _moved("arena", "float32", item.dtype, start + step.bands.offsets()[item.strip])

    def _weight(self, weight: Weight, loads: Loads | None) -> str:
        index = self._stored.number(weight)
        if loads is None:
            return f"w{index}"
        at = _load(weight, index, loads).at
        return _moved("buffer", "float32", weight.array.dtype.name, at)

    def _record(self, step: Step, record: Record) -> str:
        fields = ", ".join(
            f".{name} = {self._field(step, value)}" for name, value in record.fields.items()
        )
        text = f"static const struct {record.kind} NAME = {{{fields}}};"
        return self.records.setdefault(text, f"g{len(self.records)}")

    def _field(self, step: Step, value: int | float | tuple[int, ...]) -> str:
        if isinstance(value, tuple):
            return "{" + ", ".join(self._whole(step, each) for each in value) + "}"
        return number(value) if isinstance(value, float) else self._whole(step, value)

    def _whole(self, step: Step, value: int) -> str:
        if abs(value) > _LARGEST:
            raise ExportError(f"node {step.label!r}: {value} elements are more than an int counts")
        return str(int(value))


def in_bands(step: Step) -> bool:
    """Return whether ``step`` computes some rows at a time."""
    return step.bands is not None and step.bands.rows < step.bands.height


def _load(weight: Weight, index: int, loads: Loads) -> Load:
    if weight.rows:
        assert loads.by_rows is not None
        return loads.by_rows
    return next(load for load in loads.whole if load.number == index)


def _moved(base: str, held: str, kind: str, offset: int) -> str:
    """Return a pointer to a ``kind``, ``offset`` bytes from the array ``base`` of ``held``."""
    if held != kind:
        base = f"({C_TYPES[kind]} *){base}"
    elements = offset // np.dtype(kind).itemsize
    return f"{base} + {elements}" if elements else base


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
