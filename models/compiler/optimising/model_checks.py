"""What ONNX Runtime does not check itself: the ONNX standard, divisors, and shapes that have to agree.

A value in the memory of another relies on both shapes; a node whose operands do not fit can
only fail.
"""

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, defs, numpy_helper

from models.compiler.analysis.node_groups import name
from models.errors import CompileError, OnnxError
from models.graphs.file import reference
from models.graphs.nodes import all_graphs, attributes, label, subgraphs, versions_of
from models.network.catalogue import traits_of
from models.network.names import Op, op_of

# What ONNX Runtime does not check itself: what the ONNX checker does, and scales that are divided by.

# Operators that ONNX Runtime has in ONNX's own sets (SimplifiedLayerNormalization) are not in its
# standard; the checker passes over nodes of sets that it does not have.
_STANDARD = ("", "ai.onnx.ml")
_UNCHECKED = "unchecked"


def check(model: onnx.ModelProto, file: Path, path: Path) -> None:
    """Check ``model``.

    Args:
        model: its large weights are external data, beside ``file``.
        file: where a copy may be written.
        path: the source, for messages.

    Raises:
        OnnxError: the model is not valid.
    """
    file.write_bytes(_checkable(model).SerializeToString())
    try:
        onnx.checker.check_model(file)
    except onnx.checker.ValidationError as exc:
        raise OnnxError(f"{path}: not valid: {' '.join(str(exc).split())[:400]}") from exc
    finally:
        file.unlink()


def _checkable(model: onnx.ModelProto) -> onnx.ModelProto:
    """Return a copy without what the checker refuses and ONNX Runtime does not."""
    copy = onnx.ModelProto()
    copy.CopyFrom(model)
    for value in copy.graph.output:
        _complete(value)
    versions = versions_of(copy.opset_import)
    copy.opset_import.add(domain=_UNCHECKED, version=1)
    # Not in functions: there such an operator ends ONNX Runtime, and the process with it.
    for node in copy.graph.node:
        _pass_over(node, versions)
    return copy


def _complete(value: onnx.ValueInfoProto) -> None:
    """Give an output type and shape, which ONNX Runtime finds itself."""
    if value.type.WhichOneof("value") in (None, "tensor_type"):
        tensor = value.type.tensor_type
        tensor.elem_type = tensor.elem_type or TensorProto.FLOAT
        tensor.shape.SetInParent()


def _pass_over(node: onnx.NodeProto, versions: dict[str, int]) -> None:
    if node.domain in _STANDARD and not _is_standard(node, versions.get(node.domain)):
        node.domain = _UNCHECKED
    for graph in subgraphs(node):
        for inner in graph.node:
            _pass_over(inner, versions)


def _is_standard(node: onnx.NodeProto, version: int | None) -> bool:
    if version is None:
        return True  # the checker says that its set is not imported
    try:
        defs.get_schema(node.op_type, version, node.domain)
    except defs.SchemaError:
        return False
    return True


def check_scales(model: onnx.ModelProto, path: Path) -> None:
    """Check that no constant scale makes what cannot be rounded to integers.

    Raises:
        OnnxError: one is zero, negative, or not finite; the message names the node.
    """
    for graph in all_graphs(model.graph):
        tensors = {tensor.name: tensor for tensor in graph.initializer if reference(tensor) is None}
        for node in graph.node:
            divisor = _divisor(node)
            if divisor not in tensors:
                continue
            scales = numpy_helper.to_array(tensors[divisor]).astype(np.float64).ravel()
            wrong = scales[~((scales > 0) & np.isfinite(scales))]
            if len(wrong):
                raise OnnxError(
                    f"{path}: node {label(node)!r} ({node.op_type}): scale {divisor!r} is "
                    f"{wrong[0]:g}; it must be above zero"
                )


def _divisor(node: onnx.NodeProto) -> str:
    """Return the scale of what ``node`` makes; "": there is none.

    Those of what it reads may be zero: all is zero then, as exporters write it of channels without weights.
    """
    traits = traits_of(op_of(node))
    for position in traits.scales(len(node.input))[-1:]:
        operand = traits.operand(position)
        if operand is not None and operand.of_result:
            return node.input[position]
    return ""


# Whether shapes agree: what kernels check when they run, and memory never checks.

Shape = tuple[int, ...]
Shapes = Mapping[str, Shape]


def check_agreement(nodes: Iterable[onnx.NodeProto], shapes: Shapes, path: Path) -> None:
    """Check ``nodes`` as far as their operands are among ``shapes``, which have those of constants, too.

    Raises:
        CompileError: one contradicts another; the message names the node.
    """
    for node in nodes:
        faults = (check(node, shapes) for check in _checks(node))
        fault = next(filter(None, faults), None)
        if fault is not None:
            raise CompileError(f"{path}: {name(node)}: {fault}")


def _reshape(node: onnx.NodeProto, shapes: Shapes) -> str | None:
    before, after = shapes.get(node.input[0]), shapes.get(node.output[0])
    if before is None or after is None or math.prod(before) == math.prod(after):
        return None
    return (
        f"{math.prod(before)} values of shape {list(before)} cannot have shape {list(after)}, "
        f"which is {math.prod(after)} values"
    )


def _concat(node: onnx.NodeProto, shapes: Shapes) -> str | None:
    parts = [shapes.get(item) for item in node.input]
    whole = shapes.get(node.output[0])
    if whole is None or None in parts:
        return None
    total = sum(math.prod(part) for part in parts if part is not None)
    if total == math.prod(whole):
        return None
    return (
        f"its inputs have {total} values together, its output {list(whole)} has {math.prod(whole)}"
    )


def _channels(node: onnx.NodeProto, shapes: Shapes) -> str | None:
    x, w = (shapes.get(item) for item in node.input[:2])
    if x is None or w is None or len(x) < 3:
        return None
    group = attributes(node).get("group", 1)
    wanted = w[0] if op_of(node) == Op.ConvTranspose else w[1] * group
    if x[1] == wanted:
        return None
    groups = f" in {group} groups" if group > 1 else ""
    return f"its input {list(x)} has {x[1]} channels, its weights {list(w)}{groups} take {wanted}"


def _empty(node: onnx.NodeProto, shapes: Shapes) -> str | None:
    """A convolution or pooling of no pixels: ONNX Runtime refuses it when it runs."""
    x, y = shapes.get(node.input[0]), shapes.get(node.output[0])
    for kind, shape in (("input", x), ("output", y)):
        if shape is not None and 0 in shape[1:]:
            return f"its {kind} {list(shape)} is empty"
    return None


def _bias(node: onnx.NodeProto, shapes: Shapes) -> str | None:
    bias = shapes.get(node.input[2]) if len(node.input) > 2 else None
    result = shapes.get(node.output[0])
    if bias is None or result is None or len(result) != 2:
        return None
    padded = (1,) * (2 - len(bias)) + bias
    if len(padded) == 2 and all(
        own in (1, whole) for own, whole in zip(padded, result, strict=True)
    ):
        return None
    return f"its bias {list(bias)} cannot be added to {list(result)}"


def _dilated(node: onnx.NodeProto, shapes: Shapes) -> str | None:
    """A pool that pads by itself: ONNX Runtime ignores its dilations, and makes other rows."""
    given = attributes(node)
    padding = given.get("auto_pad", "NOTSET")
    if not padding.startswith("SAME") or max(given.get("dilations", (1,))) == 1:
        return None
    return f"auto_pad {padding} with dilations {list(given['dilations'])}; with pads it can be computed"


def _checks(node: onnx.NodeProto) -> Iterator[Callable[[onnx.NodeProto, Shapes], str | None]]:
    """Yield the checks that apply to ``node``."""
    traits = traits_of(op_of(node))
    if traits.reshapes:
        yield _reshape
    if traits.computes(Op.Concat):
        yield _concat
    if traits.access == "windowed" and traits.layer and traits.elements == "computed":
        if not traits.is_blocked:  # there weights have other shapes
            yield _channels
        yield _empty
    if traits.computes(Op.MaxPool):
        yield _dilated
    if traits.computes(Op.Gemm):
        yield _bias
