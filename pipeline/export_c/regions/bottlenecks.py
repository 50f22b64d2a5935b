"""Inverted bottlenecks as one step: some of their inner channels at a time, on bands of rows.

A convolution makes many channels, a second one convolves each by itself, a third one of one pixel adds them
up to few. Each inner channel is made for itself, so a few of them are made on the rows of a band, added to
the result, and forgotten (seed 004, Section 3.3 and Eq. 3): what lives is the input, the result and a few
rows, however many inner channels there are. On bytes the sums are 32-bit integers, of a band; they are
exact, so the bits are those of the three convolutions. Floats are added in another order than whole.
"""

from collections import Counter
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pipeline.export_c.lowering.steps import (
    Argument,
    Band,
    Bands,
    Function,
    Program,
    Record,
    Rows,
    Scratch,
    Source,
    Step,
    Strip,
    Weight,
)
from pipeline.export_c.regions.parts import Parts, parts_of
from pipeline.export_c.regions.windows import changed, record_of, rows_of

#: Inner channels that bytes are computed of side by side.
_TOGETHER = 8
_ITEM = 4


def with_bottlenecks(program: Program, outputs: frozenset[str]) -> Program:
    """Return ``program`` with each bottleneck as one step, where that takes less memory."""
    readers = Counter(name for step in program.steps for name in step.reads)
    makers = {step.output: step for step in program.steps}
    gone: set[str] = set()
    steps = []
    for step in program.steps:
        parts = parts_of(step, makers, readers, outputs)
        if parts is None or not parts.pay(program):
            steps.append(step)
            continue
        gone.update((parts.wide.output, parts.thin.output))
        del makers[step.output]  # the next one may begin with what is now part of this one
        steps.append(_of_floats(parts) if parts.floats else _of_bytes(parts))
    return replace(program, steps=tuple(step for step in steps if step.output not in gone))


def _of_floats(parts: Parts) -> Step:
    wide, thin, last = _records(parts)
    window = _fields(thin)
    inner = _number(last, "channels")
    weights = [
        array for step in (parts.wide, parts.thin) for array in _by_channel(step, inner, np.float32)
    ]
    weights.append(_weights(parts.narrow)[0].reshape(-1, inner).T)
    alone = dict.fromkeys(("channels", "filters", "groups"), 1)
    strips = (
        Strip(_ITEM * window["size_x"], rows_of(window), window["size_y"]),
        Strip(_ITEM * window["result_x"]),
    )
    first = _strips_before(parts)
    scratch = [Scratch(len(first) + number, "float32") for number in range(len(strips))]
    records = wide, changed(thin, alone), last
    functions = [_function(step) for step in (parts.wide, parts.thin)]
    return replace(
        parts.narrow,
        kernel="bottleneck",
        arguments=(
            *_arguments(parts, np.concatenate(weights, 1), scratch, records),
            *functions,
        ),
        bands=_bands(parts, window, (*first, *strips)),
    )


def _of_bytes(parts: Parts) -> Step:
    wide, thin, last = _records(parts)
    window = _fields(thin)
    inner, filters = _number(last, "channels"), _number(last, "filters")
    together = min(inner, _TOGETHER)
    weights: list[NDArray[Any]] = []
    for step in (parts.wide, parts.thin):
        bias, own = _by_channel(step, inner, np.int32)
        scale = _weights(step)[-1]
        words = [bias.astype("<i4"), scale.reshape(inner, 1).astype("<f4")]
        weights += [np.ascontiguousarray(word).view(np.int8) for word in words]
        weights.append(own)
    weights.append(_weights(parts.narrow)[0].reshape(filters, inner).T)
    strips = (
        Strip(_ITEM * filters * window["result_x"]),
        Strip(together * window["size_x"], rows_of(window), window["size_y"]),
        Strip(together * window["result_x"]),
    )
    first = _strips_before(parts)
    kinds = ("int32", "uint8", "uint8")
    scratch = [Scratch(len(first) + number, kind) for number, kind in enumerate(kinds)]
    alone = dict.fromkeys(("channels", "filters", "groups"), 1)
    beside = {"x_pixel": together, "y_pixel": together}
    records = (
        changed(wide, {"y_pixel": together}),
        changed(thin, {**alone, **beside}),
        changed(last, {"x_pixel": together}),
    )
    return replace(
        parts.narrow,
        kernel="bottleneck_of_bytes",
        arguments=_arguments(parts, np.concatenate(weights, 1), scratch, records),
        bands=_bands(parts, window, (*first, *strips)),
    )


def _records(parts: Parts) -> tuple[Record, Record, Record]:
    return record_of(parts.wide), record_of(parts.thin), record_of(parts.narrow)


def _arguments(
    parts: Parts,
    weights: NDArray[Any],
    scratch: list[Scratch],
    records: tuple[Record, ...],
) -> tuple[Argument, ...]:
    """Return those of the last convolution, with all weights, scratch and three records."""
    given: list[Argument] = []
    for item in parts.narrow.arguments:
        if isinstance(item, Weight) and item.rows:
            given.append(Weight(np.ascontiguousarray(weights), rows=True))
        elif isinstance(item, Record):
            given += [*scratch, *records]
        elif isinstance(item, Rows):
            given.append(Rows(len(weights)))
        elif isinstance(item, Band):
            given.append(Band(_number(records[2], "result_y")))
        else:
            given.append(item)
    return (parts.wide.arguments[0], *given[1:])


def _weights(step: Step) -> list[NDArray[Any]]:
    return [weight.array for weight in step.weights]


def _by_channel(step: Step, inner: int, kind: type[np.generic]) -> list[NDArray[Any]]:
    """Return bias and weights of a convolution with a row for each filter."""
    arrays = _weights(step)
    has_bias = step.arguments[2] is not None
    bias = arrays[1].astype(kind) if has_bias else np.zeros(inner, kind)
    return [bias.reshape(inner, 1), arrays[0].reshape(inner, -1)]


def _function(step: Step) -> Function:
    return Function() if step.after is None else step.after.function


def _fields(record: Record) -> dict[str, int]:
    return {name: value for name, value in record.fields.items() if isinstance(value, int)}


def _number(record: Record, name: str) -> int:
    return _fields(record)[name]


def _strips_before(parts: Parts) -> tuple[Strip, ...]:
    """Return the strips of the input, if only some rows of it are there."""
    window = _fields(record_of(parts.thin))
    held = parts.wide.bands.strips if parts.wide.bands is not None else ()
    return tuple(
        strip if strip.window is None else replace(strip, window=strip.window.then(rows_of(window)))
        for strip in held
    )


def _bands(parts: Parts, window: dict[str, int], strips: tuple[Strip, ...]) -> Bands:
    source = parts.wide.bands.source if parts.wide.bands is not None else None
    if source is not None:
        rows = rows_of(_fields(record_of(parts.wide))).then(rows_of(window))
        fields = {"stride": rows.stride, "pad": rows.before, "span": rows.reach}
        arguments = tuple(
            changed(item, fields)
            if isinstance(item, Record)
            else (Band(window["result_y"]) if isinstance(item, Band) else item)
            for item in source.arguments
        )
        source = Source(source.kernel, arguments, source.asks)
    return Bands(window["result_y"], strips, source)
