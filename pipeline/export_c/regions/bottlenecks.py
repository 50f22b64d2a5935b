"""Inverted bottlenecks as one step: some of their inner channels at a time, on bands of rows.

A convolution makes many channels, a second one convolves each by itself, a third one of one pixel adds them
up to few. Each inner channel is made for itself, so a few of them are made on the rows of a band, added to
the result, and forgotten (seed 004, Section 3.3 and Eq. 3): what lives is the input, the result and a few
rows, however many inner channels there are. On bytes the sums are 32-bit integers, of a band; they are
exact, so the bits are those of the three convolutions. Floats are added in another order than whole.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pipeline.export_c.lowering.convolution import struct_of
from pipeline.export_c.lowering.layers import LoweredLayer
from pipeline.export_c.lowering.steps import (
    Argument,
    Band,
    Bands,
    FilterRange,
    Function,
    KernelStep,
    RowStrip,
    Scratch,
    StepProgram,
    ValuePointer,
    Weight,
)
from pipeline.export_c.regions.views import View

#: Inner channels that bytes are computed of side by side.
_TOGETHER = 8
_ITEM = 4


@dataclass(frozen=True)
class _Parts:
    """Three steps and the convolutions they are: many channels, each by itself, their sums."""

    steps: Sequence[KernelStep]
    wide: LoweredLayer
    thin: LoweredLayer
    narrow: LoweredLayer

    @property
    def of_bytes(self) -> bool:
        return self.narrow.scales is not None

    @property
    def together(self) -> int:
        """Inner channels that are made side by side."""
        return min(self.narrow.channels, _TOGETHER) if self.of_bytes else 1


def with_bottlenecks(
    program: StepProgram, outputs: frozenset[str], views: Mapping[str, View]
) -> StepProgram:
    """Return ``program`` with each bottleneck as one step, where that takes less memory.

    ``outputs``: values that the caller reads. ``views``: of his images that convolutions read by rows.
    """
    readers = Counter(name for step in program.steps for name in step.reads)
    makers = {step.output: step for step in program.steps}
    gone: set[str] = set()
    steps = []
    for step in program.steps:
        parts = _parts_of(step, makers, readers, outputs)
        if parts is None or not _pay(parts, program):
            steps.append(step)
            continue
        gone.update(part.output for part in parts.steps[:2])
        del makers[step.output]  # the next one may begin with what is now part of this one
        steps.append(_as_one(parts, views.get(parts.steps[0].output)))
    return replace(program, steps=tuple(step for step in steps if step.output not in gone))


def _parts_of(
    last: KernelStep,
    makers: Mapping[str, KernelStep],
    readers: Counter[str],
    outputs: frozenset[str],
) -> _Parts | None:
    """Return the bottleneck that ``last`` ends; ``readers``: how many steps read each value."""
    steps = [last]
    while len(steps) < 3:
        read = steps[0].arguments[0] if steps[0].arguments else None
        maker = makers.get(read.name) if isinstance(read, ValuePointer) else None
        if maker is None or maker.kernel != last.kernel or maker.output in outputs:
            return None
        if readers[maker.output] != 1:
            return None
        steps.insert(0, maker)
    layers = [step.operator for step in steps if isinstance(step.operator, LoweredLayer)]
    added = any(step.after is not None and step.after.addend is not None for step in steps[:2])
    if len(layers) < 3 or added or not _fit(*layers):
        return None
    return _Parts(steps, *layers)


def _fit(wide: LoweredLayer, thin: LoweredLayer, narrow: LoweredLayer) -> bool:
    """Return whether channels inside are made for themselves, and lie as the kernels take them."""
    layers, inner = (wide, thin, narrow), wide.operator.filters
    return (
        all(layer.operator.x.shape[0] == 1 for layer in layers)
        and all(layer.scales is None or layer.y.channel == 1 for layer in layers)
        and wide.operator.groups == narrow.operator.groups == 1
        and {thin.channels, thin.operator.filters, thin.operator.groups} == {inner}
        and narrow.channels == inner
        and narrow.operator.is_pointwise
        and wide.plane.result == thin.plane.size
        and thin.plane.result == narrow.plane.size
    )


def _pay(parts: _Parts, program: StepProgram) -> bool:
    """Return whether they need less memory as one step: two tensors at once are less."""
    read = parts.steps[0].arguments[0]
    names = [read.name] if isinstance(read, ValuePointer) else []
    names += [step.output for step in parts.steps]
    sizes = [program.values[name].n_bytes for name in names]
    ends = sizes[-1] + (sizes[0] if len(sizes) > 3 else 0)
    return ends < max(map(sum, pairwise(sizes)))


def _as_one(parts: _Parts, view: View | None) -> KernelStep:
    """Return the step of all parts; ``view``: the rows that the first one reads, if they are brought."""
    wide, thin, last = parts.wide, parts.thin, parts.steps[2]
    height = thin.plane.result[0]
    bands = Bands(height) if view is None else view.bands(wide.rows.then(thin.rows), height)
    strips = _strips(parts)
    scratch = [Scratch(at, kind) for at, (kind, _) in enumerate(strips, len(bands.strips))]
    # A row for each inner channel: what makes it, its own kernel, what it gives to each filter.
    rows = [*_by_channel(wide), *_by_channel(thin), _by_channel(parts.narrow)[-1].T]
    functions = [
        Function() if step.after is None else step.after.function for step in parts.steps[:2]
    ]
    arguments: list[Argument] = [
        parts.steps[0].arguments[0],
        Weight(np.ascontiguousarray(np.concatenate(rows, 1)), rows=True),
        *last.arguments[2:-3],  # what is added to its sums, what they become, and where
        *scratch,
        *map(struct_of, _inside(parts)),
        FilterRange(parts.narrow.channels),
        Band(height),
        *([] if parts.of_bytes else functions),
    ]
    return replace(
        last,
        kernel="bottleneck_of_bytes" if parts.of_bytes else "bottleneck",
        arguments=tuple(arguments),
        bands=replace(bands, strips=(*bands.strips, *(strip for _, strip in strips))),
        operator=None,
    )


def _strips(parts: _Parts) -> list[tuple[str, RowStrip]]:
    """Return the scratch, and of which type it is: of bytes sums; inner channels before and behind."""
    (height, width), (_, result) = parts.thin.plane.size, parts.thin.plane.result
    kind, item = ("uint8", parts.together) if parts.of_bytes else ("float32", _ITEM)
    sums = ("int32", RowStrip(_ITEM * parts.narrow.operator.filters * result))
    before = (kind, RowStrip(item * width, parts.thin.rows, height))
    behind = (kind, RowStrip(item * result))
    return [sums, before, behind] if parts.of_bytes else [before, behind]


def _by_channel(layer: LoweredLayer) -> list[NDArray[Any]]:
    """Return the bias, of bytes a factor, and the weights, with a row for each filter; of bytes as such."""
    filters = len(layer.weight)
    bias = np.zeros(filters) if layer.bias is None else layer.bias
    own = layer.weight.reshape(filters, -1)
    if layer.factors is None:
        return [bias.astype(np.float32).reshape(filters, 1), own]
    words = bias.astype("<i4"), layer.factors.astype("<f4")
    return [*(word.reshape(filters, 1).view(np.int8) for word in words), own]


def _inside(parts: _Parts) -> list[LoweredLayer]:
    """Return the convolutions with as many inner channels beside each other as are made together."""
    wide, thin, narrow = parts.wide, parts.thin, parts.narrow
    operator = thin.operator
    x, y = (value.shaped((1, 1, *value.shape[2:])) for value in (operator.x, operator.y))
    weight = operator.weight.shaped((1, *operator.weight.shape[1:]))
    own = replace(thin, operator=replace(operator, x=x, y=y, weight=weight, groups=1))
    beside = {"pixel": parts.together}
    return [
        replace(wide, y=replace(wide.y, **beside)),
        replace(own, x=replace(thin.x, **beside), y=replace(thin.y, **beside)),
        replace(narrow, x=replace(narrow.x, **beside)),
    ]
