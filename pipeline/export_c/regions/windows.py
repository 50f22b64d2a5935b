"""The windows of convolutions, read from their records and changed in them."""

from collections.abc import Mapping
from dataclasses import replace

from models.network.windows import Window
from pipeline.export_c.lowering.steps import Record, Step

_KERNELS = ("convolve", "convolve_bytes")


def window_of(step: Step) -> dict[str, int] | None:
    """Return the fields of the window of a convolution, None: ``step`` is none."""
    if step.kernel not in _KERNELS:
        return None
    fields = record_of(step).fields
    return {name: value for name, value in fields.items() if isinstance(value, int)}


def record_of(step: Step) -> Record:
    """Return the record that ``step`` has."""
    return next(item for item in step.arguments if isinstance(item, Record))


def with_fields(step: Step, fields: Mapping[str, int]) -> Step:
    """Return ``step`` with other ``fields`` in its record."""
    old = record_of(step)
    new = changed(old, fields)
    return replace(step, arguments=tuple(new if item is old else item for item in step.arguments))


def changed(record: Record, fields: Mapping[str, int]) -> Record:
    """Return ``record`` with other ``fields``."""
    return Record(record.kind, {**record.fields, **fields})


def rows_of(window: Mapping[str, int]) -> Window:
    """Return the window of rows."""
    return Window(window["kernel_y"], window["stride_y"], window["step_y"], window["pad_y"])
