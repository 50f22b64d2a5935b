"""The shapes of a pack: which of them a request has, and how a shorter one is padded.

Where a network has a mask, which says where a text ends, a shorter request is padded for the next longer
shape, and what is answered is cut to its length.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

from models.network.fields import UNKNOWN
from models.packs.manifest import Manifest
from models.packs.pack import Pack
from models.packs.records.ports import Port
from models.text.recipe import IDS, MASK, ROLES

Shape = tuple[int, ...]
#: By the names of inputs.
ShapesByName = Mapping[str, Shape]
_TOKEN_AXIS = 1


class UnknownShapeError(Exception):
    """A request has none of the shapes of a pack; the message names them."""


class Fitting(NamedTuple):
    """The ``number`` of a shape, and how many ``tokens`` of it a request has; None: it is not padded."""

    number: int
    tokens: int | None = None


@dataclass(frozen=True)
class PackShapes:
    """The shapes of a pack, whose ``manifests`` are those of each, the largest first."""

    manifests: tuple[Manifest, ...]

    @classmethod
    def of(cls, pack: Pack) -> Self:
        """Return those of ``pack``."""
        return cls((pack.manifest, *(other.manifest for other in pack.others)))

    @cached_property
    def _open(self) -> tuple[str, ...]:
        """The inputs whose shapes differ."""
        first, *others = (
            {port.name: port.shape for port in each.inputs} for each in self.manifests
        )
        return tuple(
            name for name, shape in first.items() if any(each[name] != shape for each in others)
        )

    @cached_property
    def _numbers(self) -> Mapping[tuple[Shape | None, ...], int]:
        ports = ({port.name: port.shape for port in each.inputs} for each in self.manifests)
        return {self._key(shapes): number for number, shapes in enumerate(ports)}

    def _key(self, shapes: ShapesByName) -> tuple[Shape | None, ...]:
        return tuple(shapes.get(name) for name in self._open)

    def find(self, shapes: ShapesByName) -> Fitting:
        """Return the shape that inputs of these ``shapes`` have, or the smallest for which they are padded.

        What is missing, or of another network, is the first shape's to refuse.

        Raises:
            UnknownShapeError: there is none.
        """
        number = self._numbers.get(self._key(shapes))
        if number is not None:
            return Fitting(number)
        if any(name not in shapes for name in self._open):
            return Fitting(0)
        return self._padded(shapes) or self._refuse(shapes)

    def of_tokens(self, count: int) -> int:
        """Return the smallest shape for a text of so many tokens, of a pack that takes texts."""
        fitting = (
            number
            for number, manifest in enumerate(self.manifests)
            if manifest.text is not None and count <= manifest.text.max_tokens
        )
        return max(fitting, default=0)

    @cached_property
    def _pads(self) -> bool:
        """Whether a mask says what is padding, and shapes differ in nothing but the number of tokens."""
        names = set(self._open)
        rows = {
            port.shape[:_TOKEN_AXIS]
            for each in self.manifests
            for port in each.inputs
            if port.name in names
        }
        return MASK in names and names.issubset(ROLES) and rows == {(1,)}

    def _padded(self, shapes: ShapesByName) -> Fitting | None:
        requested = {shapes[name] for name in self._open}
        if not self._pads or len(requested) != 1:
            return None
        (shape,) = requested
        if len(shape) != _TOKEN_AXIS + 1 or shape[0] != 1 or not shape[1]:
            return None
        fitting = [n for n, length in enumerate(self._lengths) if shape[1] <= length]
        return Fitting(fitting[-1], shape[1]) if fitting else None

    @cached_property
    def _lengths(self) -> tuple[int, ...]:
        """The numbers of tokens of the shapes, of those that are padded."""
        ports = ({port.name: port.shape for port in each.inputs} for each in self.manifests)
        return tuple(shapes[self._open[0]][_TOKEN_AXIS] for shapes in ports)

    def _refuse(self, shapes: ShapesByName) -> Fitting:
        known = "; ".join(each.shown_shape for each in self.manifests)
        if self._pads:
            known = f"up to {self._lengths[0]} tokens, each padded to one of {known}"
        requested = ", ".join(f"{name!r} is {list(shapes[name])}" for name in self._open)
        raise UnknownShapeError(f"input {requested}; the model takes {known}")

    def padded(self, fitting: Fitting, inputs: Mapping[str, Any]) -> dict[str, Any]:
        """Return ``inputs`` as the shape ``fitting`` has them."""
        if fitting.tokens is None:
            return dict(inputs)
        arrays = dict(inputs)
        text = self.manifests[0].text
        for name in self._open:
            array = np.asarray(inputs[name])
            pad = text.pad_id if text is not None and name == IDS else 0
            target = np.full((1, self._lengths[fitting.number]), pad, array.dtype)
            target[self._tokens(fitting)] = array
            arrays[name] = target
        return arrays

    def _tokens(self, fitting: Fitting) -> tuple[slice, slice]:
        """Return where the tokens of a request lie."""
        text, length = self.manifests[0].text, self._lengths[fitting.number]
        count = length if fitting.tokens is None else fitting.tokens
        is_left = text is not None and text.pad_side == "left"
        return slice(None), slice(length - count, None) if is_left else slice(count)

    def cut(
        self, fitting: Fitting, outputs: Mapping[str, NDArray[Any]]
    ) -> Mapping[str, NDArray[Any]]:
        """Return ``outputs`` of the shape ``fitting`` as long as the request is."""
        if fitting.tokens is None:
            return outputs
        tokens = self._tokens(fitting)[_TOKEN_AXIS]
        return {
            name: array[
                tuple(
                    tokens if axis in self._token_axes[name] else slice(None)
                    for axis in range(array.ndim)
                )
            ]
            for name, array in outputs.items()
        }

    @cached_property
    def _token_axes(self) -> Mapping[str, frozenset[int]]:
        """The axes of each output along which are the tokens: it is as long as they are in each shape."""
        axes: dict[str, frozenset[int]] = {}
        for ports in zip(*(each.outputs for each in self.manifests), strict=True):
            columns = enumerate(zip(*(port.shape for port in ports), strict=True))
            axes[ports[0].name] = frozenset(n for n, column in columns if column == self._lengths)
        return axes

    @property
    def inputs(self) -> tuple[Port, ...]:
        """The inputs of the largest shape, with UNKNOWN where others differ."""
        return _open_ports([each.inputs for each in self.manifests])

    @property
    def outputs(self) -> tuple[Port, ...]:
        """The outputs of the largest shape, with UNKNOWN where others differ."""
        return _open_ports([each.outputs for each in self.manifests])


def _open_ports(shapes: Sequence[Sequence[Port]]) -> tuple[Port, ...]:
    return tuple(
        replace(
            ports[0],
            shape=tuple(
                lengths[0] if len(set(lengths)) == 1 else UNKNOWN
                for lengths in zip(*(port.shape for port in ports), strict=True)
            ),
        )
        for ports in zip(*shapes, strict=True)
    )
