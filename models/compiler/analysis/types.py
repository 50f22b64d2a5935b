"""What ONNX Runtime says of the values of a graph: which have a place in the arena, which cannot."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass

import numpy as np
import onnx
import onnxruntime as ort
from onnx import TensorProto, helper

from models.graphs.nodes import fresh
from models.network.fields import DTYPES, STRINGS, UNKNOWN, Array

_ELEMENT_TYPES = {"float": "float32", "double": "float64", "string": STRINGS}

OpenModel = Callable[[onnx.ModelProto], ort.InferenceSession]


@dataclass(frozen=True)
class Loose:
    """A value without a place: why, and what it is where NumPy has such arrays."""

    reason: str
    array: Array | None


@dataclass(frozen=True)
class ValueTypes:
    """``placed``: values of known size. ``loose``: all others."""

    placed: dict[str, Array]
    loose: dict[str, Loose]


def value_types(probe: onnx.ModelProto, open_model: OpenModel) -> ValueTypes:
    """Return the types of inputs and outputs of ``probe``, whose outputs are all its values.

    ``open_model`` may be called twice: ONNX Runtime gives an unknown rank and a scalar the same empty
    shape, and only the shape of its shape tells one from the other.
    """
    session = open_model(probe)
    found = {
        port.name: typed(port.name, port.type, port.shape)
        for port in (*session.get_inputs(), *session.get_outputs())
    }
    # The inputs' ranks are declared; those of the others are ONNX Runtime's.
    made = {port.name for port in session.get_outputs()} - {p.name for p in session.get_inputs()}
    del session
    scalars = [name for name in made if isinstance(found[name], Array) and not _shape(found[name])]
    for name in _unknown_ranks(probe, sorted(scalars), open_model):
        found[name] = Loose(f"value {name!r} has a rank that is known only at run time", None)
    return ValueTypes(
        {name: item for name, item in found.items() if isinstance(item, Array)},
        {name: item for name, item in found.items() if isinstance(item, Loose)},
    )


def _shape(item: Array | Loose) -> tuple[int, ...]:
    return item.shape if isinstance(item, Array) else (UNKNOWN,)


def typed(name: str, type_name: str, shape: list[int | str | None]) -> Array | Loose:
    """Return what a value is, from ONNX Runtime's words for its type and its dimensions."""
    element = _element(type_name)
    if element is None:
        return Loose(f"value {name!r} has type {type_name}", None)
    # ONNX Runtime writes -1 for a dimension that no one has named.
    dims = tuple(dim if isinstance(dim, int) and dim >= 0 else UNKNOWN for dim in shape)
    array = Array(dtype=element, shape=dims)
    if element == STRINGS:
        return Loose(f"value {name!r} has type {type_name}", array)
    if UNKNOWN in dims:
        shown = "[" + ", ".join("?" if dim == UNKNOWN else str(dim) for dim in dims) + "]"
        return Loose(f"value {name!r} has a shape that is known only at run time: {shown}", array)
    return array


def _element(type_name: str) -> str | None:
    """Return the dtype of a tensor type such as "tensor(float)", None where NumPy has none."""
    if not type_name.startswith("tensor("):
        return None
    element = type_name.removeprefix("tensor(").removesuffix(")")
    if element in _ELEMENT_TYPES:
        return _ELEMENT_TYPES[element]
    try:
        number = TensorProto.DataType.Value(element.upper())
        name = np.dtype(helper.tensor_dtype_to_np_dtype(number)).name
    except (KeyError, ValueError, TypeError):
        return None
    return name if name in DTYPES else None


def _unknown_ranks(
    probe: onnx.ModelProto, names: Iterable[str], open_model: OpenModel
) -> list[str]:
    names = list(names)
    if not names:
        return []
    asked = onnx.ModelProto()
    asked.CopyFrom(probe)
    taken = {value.name for value in (*probe.graph.input, *probe.graph.output)}
    ranks = {name: fresh(f"{name}/rank", taken) for name in names}
    for name, rank in ranks.items():
        asked.graph.node.append(helper.make_node("Shape", [name], [rank]))
        asked.graph.output.add().name = rank
    session = open_model(asked)
    known = {port.name for port in session.get_outputs() if port.shape == [0]}
    return [name for name in names if ranks[name] not in known]
