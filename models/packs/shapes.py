"""The shapes of a pack: which of them a request has, and how a shorter one is padded.

Where a network has a mask, which says where a text ends, a shorter request is padded for the next longer
shape, and what is answered is cut to its length.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from models.network.fields import UNKNOWN
from models.packs.manifest import Manifest
from models.packs.records.ports import Port
from models.text.recipe import IDS, MASK, ROLES

Shape = tuple[int, ...]
#: By the names of inputs.
ShapesByName = Mapping[str, Shape]
_TOKEN_AXIS = 1


class UnknownShapeError(Exception):
    """A request has none of the shapes of a pack; the message names them."""


class ShapeMatch(NamedTuple):
    """The index of a shape, and how many ``tokens`` of it a request has; None: it is not padded."""

    shape_index: int
    tokens: int | None = None


@dataclass(frozen=True)
class PackShapes:
    """The shapes of a pack, whose ``manifests`` are those of each, the largest first."""

    manifests: tuple[Manifest, ...]

    @cached_property
    def _open(self) -> tuple[str, ...]:
        """The inputs whose shapes differ."""
        first, *others = (
            {port.name: port.shape for port in manifest.inputs} for manifest in self.manifests
        )
        return tuple(
            name for name, shape in first.items() if any(shapes[name] != shape for shapes in others)
        )

    @cached_property
    def _indices(self) -> Mapping[tuple[Shape | None, ...], int]:
        ports = ({port.name: port.shape for port in manifest.inputs} for manifest in self.manifests)
        return {self._key(shapes): index for index, shapes in enumerate(ports)}

    def _key(self, shapes: ShapesByName) -> tuple[Shape | None, ...]:
        return tuple(shapes.get(name) for name in self._open)

    def find(self, shapes: ShapesByName) -> ShapeMatch:
        """Return the shape that inputs of these ``shapes`` have, or the smallest for which they are padded.

        What is missing, or of another network, is the first shape's to refuse.

        Raises:
            UnknownShapeError: there is none.
        """
        index = self._indices.get(self._key(shapes))
        if index is not None:
            return ShapeMatch(index)
        if any(name not in shapes for name in self._open):
            return ShapeMatch(0)
        return self._padded(shapes) or self._refuse(shapes)

    def of_tokens(self, count: int) -> Manifest:
        """Return the smallest shape for a text of so many tokens, of a pack that takes texts."""
        shapes = (
            manifest
            for manifest in reversed(self.manifests)
            if manifest.text is not None and count <= manifest.text.max_tokens
        )
        return next(shapes, self.manifests[0])

    @cached_property
    def _pads(self) -> bool:
        """Whether a mask says what is padding, and shapes differ in nothing but the number of tokens."""
        names = set(self._open)
        rows = {
            port.shape[:_TOKEN_AXIS]
            for manifest in self.manifests
            for port in manifest.inputs
            if port.name in names
        }
        return MASK in names and names.issubset(ROLES) and rows == {(1,)}

    def _padded(self, shapes: ShapesByName) -> ShapeMatch | None:
        requested = {shapes[name] for name in self._open}
        if not self._pads or len(requested) != 1:
            return None
        (shape,) = requested
        if len(shape) != _TOKEN_AXIS + 1 or shape[0] != 1 or not shape[1]:
            return None
        match = [n for n, length in enumerate(self._lengths) if shape[1] <= length]
        return ShapeMatch(match[-1], shape[1]) if match else None

    @cached_property
    def _lengths(self) -> tuple[int, ...]:
        """The numbers of tokens of the shapes, of those that are padded."""
        ports = ({port.name: port.shape for port in manifest.inputs} for manifest in self.manifests)
        return tuple(shapes[self._open[0]][_TOKEN_AXIS] for shapes in ports)

    def accepts(self, name: str, shape: Shape) -> bool:
        """Return whether input ``name`` may have ``shape``, if the other inputs go with it."""
        if name in self._open and self._pads:
            length = shape[1] if len(shape) == _TOKEN_AXIS + 1 and shape[0] == 1 else 0
            return 0 < length <= self._lengths[0]
        return shape in self.shapes_of(name)

    def shapes_of(self, name: str) -> list[Shape]:
        """Return the shapes of input ``name``, each once, the largest first."""
        ports = (port for manifest in self.manifests for port in manifest.inputs)
        return list(dict.fromkeys(port.shape for port in ports if port.name == name))

    @property
    def choices(self) -> str:
        """The shapes that requests may have, in words."""
        choices = "; ".join(manifest.shape_text for manifest in self.manifests)
        if self._pads:
            choices = f"up to {self._lengths[0]} tokens, padded to one of {choices}"
        return choices

    def _refuse(self, shapes: ShapesByName) -> ShapeMatch:
        requested = ", ".join(f"{name!r} is {list(shapes[name])}" for name in self._open)
        raise UnknownShapeError(f"input {requested}; the model takes {self.choices}")

    def padded(self, match: ShapeMatch, inputs: Mapping[str, Any]) -> dict[str, Any]:
        """Return ``inputs`` as the shape ``match`` has them."""
        if match.tokens is None:
            return dict(inputs)
        arrays = dict(inputs)
        text = self.manifests[0].text
        for name in self._open:
            array = np.asarray(inputs[name])
            pad = text.pad_id if text is not None and name == IDS else 0
            target = np.full((1, self._lengths[match.shape_index]), pad, array.dtype)
            target[self._tokens(match)] = array
            arrays[name] = target
        return arrays

    def _tokens(self, match: ShapeMatch) -> tuple[slice, slice]:
        """Return where the tokens of a request lie."""
        text, length = self.manifests[0].text, self._lengths[match.shape_index]
        count = length if match.tokens is None else match.tokens
        is_left = text is not None and text.pad_side == "left"
        return slice(None), slice(length - count, None) if is_left else slice(count)

    def cut(
        self, match: ShapeMatch, outputs: Mapping[str, NDArray[Any]]
    ) -> Mapping[str, NDArray[Any]]:
        """Return ``outputs`` of the shape ``match`` as long as the request is."""
        if match.tokens is None:
            return outputs
        tokens = self._tokens(match)[_TOKEN_AXIS]
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
        for ports in zip(*(manifest.outputs for manifest in self.manifests), strict=True):
            columns = enumerate(zip(*(port.shape for port in ports), strict=True))
            axes[ports[0].name] = frozenset(n for n, column in columns if column == self._lengths)
        return axes

    @property
    def inputs(self) -> tuple[Port, ...]:
        """The inputs of the largest shape, with UNKNOWN where others differ."""
        return _open_ports([manifest.inputs for manifest in self.manifests])

    @property
    def outputs(self) -> tuple[Port, ...]:
        """The outputs of the largest shape, with UNKNOWN where others differ."""
        return _open_ports([manifest.outputs for manifest in self.manifests])


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
