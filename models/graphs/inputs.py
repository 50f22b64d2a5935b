"""The inputs of a model: static shapes for all, and defaults for those that a caller may leave out.

Since IR version 4 an initializer that is also an input is its default. Before, every initializer had
to be an input; exporters kept that habit for years. So a file that lists a weight of a layer lists by
habit: whatever it lists with a value is a constant, unless it is asked for by name.
"""

import math
import shlex
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto, helper

from models.errors import OnnxError
from models.graphs.file import MAX_TENSOR_BYTES
from models.graphs.graph import Graph, inputs_of, is_quantised
from models.graphs.nodes import all_graphs
from models.images.preprocess import PICTURE_RANK
from models.network.catalogue import traits_of
from models.network.fields import DTYPES
from models.network.names import Op, op_of
from models.network.node import Node
from models.network.records import Role

#: Defaults are kept in the manifest: larger ones are weights.
MAX_DEFAULT_BYTES = 1 << 16

# What stands for a length that the file leaves open; some exporters write -1.
_UNKNOWN = (0, -1)

# What layers have there no caller means to replace.
_CONSTANT: tuple[Role, ...] = ("weight", "bias", "statistic", "scale", "zero_point")
_FIRST_IR_WITH_DEFAULTS = 4
_SHOWN_OPTIONS = 3

#: Called with what a user should know and need not act on.
Warn = Callable[[str], None]


def keep_defaults(
    path: Path, model: onnx.ModelProto, warn: Warn, asked: Collection[str] = ()
) -> None:
    """Leave those initializers among the inputs that are defaults; the others become constants.

    ``asked``: names of those that are defaults whatever they look like.

    Raises:
        OnnxError: one of ``asked`` has no value, or cannot be a default.
    """
    initializers = {tensor.name: tensor for tensor in model.graph.initializer}
    listed = [value.name for value in model.graph.input if value.name in initializers]
    _check_asked(
        path, [name for name in listed if _can_be_default(initializers[name])], listed, asked
    )
    if model.ir_version < _FIRST_IR_WITH_DEFAULTS or not _weights(model).isdisjoint(listed):
        constants = set(listed)
    else:
        constants = {name for name in listed if not _can_be_default(initializers[name])}
    constants.difference_update(asked)
    if constants and model.ir_version >= _FIRST_IR_WITH_DEFAULTS:
        warn(_announcement(path, [name for name in listed if name in constants]))
    kept = [value for value in model.graph.input if value.name not in constants]
    del model.graph.input[:]
    model.graph.input.extend(kept)
    model.ir_version = max(model.ir_version, _FIRST_IR_WITH_DEFAULTS)


def _weights(model: onnx.ModelProto) -> set[str]:
    """Return what layers of ``model`` read as weights, some of it by way of another shape or type."""
    nodes = [
        Node(op_of(node), tuple(node.input), tuple(node.output))
        for graph in all_graphs(model.graph)
        for node in graph.node
    ]
    weights = {
        name
        for node in nodes
        for name in (node.inputs if is_quantised(node) else inputs_of(node, *_CONSTANT))
    }
    for node in reversed(nodes):
        if traits_of(node.operator).passes_weights and not weights.isdisjoint(node.outputs):
            weights.update(node.inputs[:1])
    return weights


def _check_asked(
    path: Path, able: Collection[str], listed: Collection[str], asked: Collection[str]
) -> None:
    for name in asked:
        if name not in listed:
            raise OnnxError(f"{path}: {name!r} is no input with a value")
        if name not in able:
            raise OnnxError(
                f"{path}: {name!r} cannot be an input with a default: at most "
                f"{MAX_DEFAULT_BYTES >> 10} KiB of numbers can"
            )


def _can_be_default(tensor: TensorProto) -> bool:
    dtype = np.dtype(helper.tensor_dtype_to_np_dtype(tensor.data_type))
    return dtype.name in DTYPES and math.prod(tensor.dims) * dtype.itemsize <= MAX_DEFAULT_BYTES


def _announcement(path: Path, names: Sequence[str]) -> str:
    rest = f" and {len(names) - 3} more" if len(names) > 3 else ""
    shown = ", ".join(repr(name) for name in names[:3])
    return (
        f"{path}: {shown}{rest}: listed as input{'s' if len(names) > 1 else ''} with a default; "
        "constant in the pack, no request can name it (--keep-input NAME keeps one as an input)"
    )


def default_tensors(model: onnx.ModelProto) -> dict[str, TensorProto]:
    """Return the initializers that are defaults of inputs, by name."""
    inputs = {value.name for value in model.graph.input}
    return {tensor.name: tensor for tensor in model.graph.initializer if tensor.name in inputs}


def take_defaults(graph: Graph) -> tuple[Graph, dict[str, NDArray[Any]]]:
    """Return ``graph`` without the defaults of its inputs, and these, each as its input takes it."""
    defaults = {name: graph.constants[name] for name in graph.inputs if name in graph.constants}
    kept = {name: array for name, array in graph.constants.items() if name not in defaults}
    return replace(graph, constants=kept), defaults


def fix_inputs(
    path: Path,
    model: onnx.ModelProto,
    batch: int | None,
    shapes: Mapping[str, tuple[int, ...]],
    picture: Sequence[int],
    warn: Warn,
) -> None:
    """Give every input a static shape and forget all shapes that could contradict it.

    Args:
        path: the file, for messages.
        model: inputs with a default have the shape of that.
        batch: what an unknown first dimension becomes; None: 1.
        shapes: whole shapes by input name.
        picture: the shape of pictures, which give the one input what it leaves open; empty: of none.
        warn: is called for a shape that is not the one in the file.

    Raises:
        OnnxError: a shape stays unknown or is impossible, or ``batch`` is given and changes nothing.
    """
    defaults = default_tensors(model)
    _check_batch(path, model, batch, shapes, defaults)
    first = 1 if batch is None else batch
    open_inputs = [value for value in model.graph.input if value.name not in {*shapes, *defaults}]
    if len(open_inputs) == 1:
        shapes = {**shapes, **_of_picture(open_inputs[0], picture, first)}
    given = {*shapes, *defaults}
    _check_known(path, [value for value in model.graph.input if value.name not in given], first)
    for value in model.graph.input:
        if not value.type.HasField("tensor_type"):
            raise OnnxError(f"{path}: input {value.name!r} is not a tensor")
        if value.name in defaults:
            shape = _default_shape(path, defaults[value.name], shapes.get(value.name))
        else:
            shape = shapes.get(value.name) or tuple(n or 0 for n in _lengths(value, first))
            _say_other(path, value, shape, warn)
            if batch is None and value.name not in given and _lengths(value, 0)[:1] == [0]:
                option = shlex.quote(f"{value.name}={','.join(map(str, ('N', *shape[1:])))}")
                warn(
                    f"{path}: input {value.name!r} leaves its first dimension open: it is 1, and another "
                    f"number with --shape {option}"
                )
        _check_shape(path, value, shape, 0 if value.name in given else 1)
        _declare(path, value, shape)
    _forget_shapes(model)


def _of_picture(
    value: onnx.ValueInfoProto, picture: Sequence[int], first: int
) -> dict[str, tuple[int, ...]]:
    """Return the shape of ``value`` by its name, where ``picture`` says what it leaves open."""
    lengths = _lengths(value, first)
    if None not in lengths or len(lengths) != len(picture):
        return {}
    return {value.name: tuple(a or b for a, b in zip(lengths, picture, strict=True))}


def _say_other(path: Path, value: onnx.ValueInfoProto, shape: tuple[int, ...], warn: Warn) -> None:
    """Warn where ``shape`` is not what ``path`` has fixed: its layers may not fit any more."""
    dims = [dim.dim_value for dim in value.type.tensor_type.shape.dim]
    same = len(dims) == len(shape) and all(
        n in (*_UNKNOWN, m) for n, m in zip(dims, shape, strict=True)
    )
    if value.type.tensor_type.HasField("shape") and not same:
        warn(f"{path}: input {value.name!r} is {dims} in the file, {list(shape)} by --shape")


def _check_batch(
    path: Path,
    model: onnx.ModelProto,
    batch: int | None,
    shapes: Collection[str],
    defaults: Collection[str],
) -> None:
    """Refuse a ``batch`` that no input takes."""
    if batch is None:
        return
    fixed = []
    for value in model.graph.input:
        dims = [dim.dim_value for dim in value.type.tensor_type.shape.dim]
        if value.name in shapes:
            fixed.append(f"{value.name!r} by --shape")
        elif value.name not in defaults:
            if dims and dims[0] in (*_UNKNOWN, batch):
                return
            fixed.append(f"{value.name!r} is {dims}")
    raise OnnxError(
        f"{path}: --batch {batch} changes nothing, since the first dimension of every input is fixed "
        f"({', '.join(fixed[:3]) or 'there is none'}); --shape NAME={batch},... replaces it"
    )


def _default_shape(
    path: Path, tensor: TensorProto, shape: tuple[int, ...] | None
) -> tuple[int, ...]:
    own = tuple(tensor.dims)
    if shape not in (None, own):
        raise OnnxError(
            f"{path}: input {tensor.name!r} has a default of shape {list(own)}, not {list(shape)}"
        )
    return own


def _declare(path: Path, value: onnx.ValueInfoProto, shape: tuple[int, ...]) -> None:
    declared = value.type.tensor_type.shape
    if len(declared.dim) not in (0, len(shape)):
        raise OnnxError(
            f"{path}: input {value.name!r} has {len(declared.dim)} dimensions, not {len(shape)}"
        )
    declared.SetInParent()
    del declared.dim[:]
    for length in shape:
        declared.dim.add().dim_value = length


def _forget_shapes(model: onnx.ModelProto) -> None:
    """Remove shapes that would contradict those of the inputs: they are inferred anew.

    The results of loop bodies keep theirs, since they cannot be inferred.
    """
    for graph in all_graphs(model.graph):
        del graph.value_info[:]
        for branch in (
            item.g for node in graph.node if op_of(node) == Op.If for item in node.attribute
        ):
            for value in branch.output:
                if value.type.HasField("tensor_type"):
                    value.type.tensor_type.ClearField("shape")
    for value in model.graph.output:
        for dim in value.type.tensor_type.shape.dim:
            dim.Clear()


def _check_known(path: Path, inputs: Sequence[onnx.ValueInfoProto], batch: int) -> None:
    """Refuse the first of ``inputs`` with an unknown length; the message has options for all that have."""
    tensors = [value for value in inputs if value.type.HasField("tensor_type")]
    for value in tensors:
        where = f"{path}: input {value.name!r}"
        if not value.type.tensor_type.HasField("shape"):
            option = shlex.quote(f"{value.name}=1,3,224,224")
            raise OnnxError(f"{where}: shape unknown; fix it with --shape {option}")
        lengths = _lengths(value, batch)
        if None in lengths:
            axis = lengths.index(None)
            label = value.type.tensor_type.shape.dim[axis].dim_param or "?"
            others = [each for each in tensors if None in _lengths(each, batch)]
            picture = ", or for pictures with --preprocess" if len(lengths) == PICTURE_RANK else ""
            raise OnnxError(
                f"{where}: dimension {axis} ({label}) is dynamic; fix it with a number for each N in "
                f"{_shape_options(others, batch)}{picture}"
            )


def _shape_options(values: Sequence[onnx.ValueInfoProto], batch: int) -> str:
    """Return --shape options with the lengths that are known, as a shell takes them."""
    options = [
        f"--shape {shlex.quote(f'{value.name}={lengths}')}"
        for value in values[:_SHOWN_OPTIONS]
        for lengths in [",".join(str(n or "N") for n in _lengths(value, batch))]
    ]
    rest = len(values) - len(options)
    return " ".join(options) + (f" and {rest} more" if rest else "")


def _lengths(value: onnx.ValueInfoProto, batch: int) -> list[int | None]:
    """Return the length of each dimension; ``batch`` for an unknown first, None for others unknown."""
    dims = value.type.tensor_type.shape.dim
    unknown = (batch if axis == 0 else None for axis in range(len(dims)))
    return [
        other if dim.dim_value in _UNKNOWN else dim.dim_value
        for dim, other in zip(dims, unknown, strict=True)
    ]


def _check_shape(
    path: Path, value: onnx.ValueInfoProto, shape: tuple[int, ...], least: int
) -> None:
    where = f"{path}: input {value.name!r}"
    for axis, length in enumerate(shape):
        if length < least:
            raise OnnxError(f"{where}: dimension {axis} is {length}")
    if math.prod(shape) > MAX_TENSOR_BYTES:
        raise OnnxError(f"{where}: dimensions {list(shape)} overflow")
