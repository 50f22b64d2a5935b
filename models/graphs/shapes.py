"""The requested shapes of a network: of whole inputs, or of dimensions that the file leaves open."""

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import onnx

from models.errors import OnnxError
from models.packs.names import MAX_SHAPES
from models.sizes import Lengths
from models.text.recipe import ROLES

#: Names of dimensions, whatever the file calls them: the first of inputs, and that of the inputs of texts.
BATCH, TOKENS = "batch", "tokens"
_MAX_LISTED = 3
_UNKNOWN = (0, -1)


@dataclass(frozen=True)
class ShapeChoice:
    """One of the shapes: ``shapes`` of whole inputs, and ``lengths`` of dimensions, by name."""

    shapes: Mapping[str, tuple[int, ...]]
    lengths: Mapping[str, int]


def shape_choices(
    path: Path, model: onnx.ModelProto, requested: Mapping[str, Lengths]
) -> list[ShapeChoice]:
    """Return each combination of what is ``requested``, the one with the largest inputs first.

    Raises:
        OnnxError: a name is of no input and no dimension, one is there twice, or there are too many.
    """
    inputs = {value.name for value in model.graph.input}
    names: list[tuple[str, bool]] = []
    several: list[Sequence[tuple[int, ...] | int]] = []
    for name, lengths in requested.items():
        is_input = name in inputs
        shapes = tuple(shape for shape in lengths if isinstance(shape, tuple)) or (_flat(lengths),)
        if not is_input:
            _check_dimension(path, model, name, shapes)
        names.append((name, is_input))
        several.append(shapes if is_input else shapes[0])
        if len(set(several[-1])) < len(several[-1]):
            raise OnnxError(f"{path}: --shape {name}: one is there twice")
    if math.prod(map(len, several)) > MAX_SHAPES:
        raise OnnxError(
            f"{path}: --shape: {math.prod(map(len, several))} shapes; {MAX_SHAPES} are the most"
        )
    choices = [_choice(names, values) for values in itertools.product(*several)]
    return sorted(choices, key=lambda choice: -_size(model, choice))


def _flat(lengths: Lengths) -> tuple[int, ...]:
    return tuple(length for length in lengths if isinstance(length, int))


def _choice(
    names: Sequence[tuple[str, bool]], values: Sequence[tuple[int, ...] | int]
) -> ShapeChoice:
    pairs = list(zip(names, values, strict=True))
    return ShapeChoice(
        {name: value for (name, _), value in pairs if isinstance(value, tuple)},
        {name: value for (name, _), value in pairs if isinstance(value, int)},
    )


def _size(model: onnx.ModelProto, choice: ShapeChoice) -> int:
    """Return how many numbers the inputs have, those of open dimensions counted as one."""
    total = 0
    for value in model.graph.input:
        dims = value.type.tensor_type.shape.dim
        shape = choice.shapes.get(value.name) or [
            choice.lengths.get(name or "", dim.dim_value or 1)
            for dim, name in zip(dims, _names(value, choice.lengths), strict=True)
        ]
        total += math.prod(max(length, 1) for length in shape)
    return total


def _names(value: onnx.ValueInfoProto, lengths: Mapping[str, object]) -> list[str | None]:
    """Return which of the names of ``lengths`` each open dimension of ``value`` has; None: none of them."""
    names: list[str | None] = []
    for axis, dim in enumerate(value.type.tensor_type.shape.dim):
        alias = BATCH if axis == 0 else TOKENS if axis == 1 and value.name in ROLES else None
        possible = (dim.dim_param, alias) if dim.dim_value in _UNKNOWN else ()
        names.append(next((name for name in possible if name and name in lengths), None))
    return names


def _check_dimension(
    path: Path, model: onnx.ModelProto, name: str, shapes: tuple[tuple[int, ...], ...]
) -> None:
    """Check that ``name`` is of an open dimension, and that it is given lengths."""
    values = model.graph.input
    if len(shapes) == 1 and any(name in _names(value, {name: 0}) for value in values):
        return
    listed = ", ".join(value.name for value in values[:_MAX_LISTED])
    params = (dim.dim_param for value in values for dim in value.type.tensor_type.shape.dim)
    labels = ", ".join(list(dict.fromkeys(filter(None, params)))[:_MAX_LISTED])
    dimensions = f", and the dimensions {labels}" if labels else ""
    raise OnnxError(f"{path}: no input called {name}; there is {listed}{dimensions}")


def fix_dimensions(model: onnx.ModelProto, lengths: Mapping[str, int]) -> None:
    """Give the open dimensions of inputs their ``lengths``, by name."""
    for value in model.graph.input:
        for dim, name in zip(value.type.tensor_type.shape.dim, _names(value, lengths), strict=True):
            if name is not None:
                dim.dim_value = lengths[name]  # in place of its name
