"""Small corrections to the optimised model, so that the rest of the compiler meets fewer cases."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto, helper

from models.compiler.analysis.graph import Graph, Loose, ValueTypes
from models.compiler.optimising.bodies import rename_reads
from models.errors import CompileError
from models.graphs.file import bring_inside
from models.graphs.nodes import (
    attributes,
    copied,
    inner_tensors,
    new_node,
    reads,
    set_attributes,
    subgraphs,
    versions_of,
    with_attributes,
)
from models.graphs.rewriting import Rewriter
from models.network.catalogue import traits_of
from models.network.fields import DTYPES, Array
from models.network.names import Op, op_of
from models.network.operators.resizing import Resize
from models.network.windows import windows_of

#: Inputs: what is cut, starts, ends, axes, then perhaps steps.
_AXES = 3
# The first set of operators whose Resize takes sizes, its inputs before these, and how it repeats elements.
_RESIZE_WITH_SIZES = 11
_SIZES = 3
_REPEATS = {
    "mode": "nearest",
    "coordinate_transformation_mode": "asymmetric",
    "nearest_mode": "floor",
}
# The first operator set whose Gemm needs no third input.
_GEMM_WITHOUT_BIAS = 11
_PRODUCTS = frozenset({"float32", "float64"})


def has_dtype(tensor: TensorProto) -> bool:
    """Return whether NumPy has the element type of ``tensor``, one element after the other."""
    try:
        return np.dtype(helper.tensor_dtype_to_np_dtype(tensor.data_type)).name in DTYPES
    except (KeyError, ValueError):
        return False


def take_tensors(model: onnx.ModelProto, folder: Path) -> dict[str, TensorProto]:
    """Return the initializers that have no dtype; bring the data of theirs and of subgraphs inside."""
    tensors = {tensor.name: tensor for tensor in model.graph.initializer if not has_dtype(tensor)}
    for tensor in (*tensors.values(), *inner_tensors(model.graph.node)):
        bring_inside(tensor, folder)
    return tensors


def copy_constant_outputs(model: onnx.ModelProto) -> None:
    """Let a node compute each output that is a constant; the constant gets another name."""
    outputs = {value.name for value in model.graph.output}
    renamed = {
        tensor.name: f"{tensor.name}/constant"
        for tensor in model.graph.initializer
        if tensor.name in outputs
    }
    if not renamed:
        return
    for tensor in model.graph.initializer:
        tensor.name = renamed.get(tensor.name, tensor.name)
    rename_reads(model.graph.node, renamed)
    for name, constant in renamed.items():
        model.graph.node.append(new_node(Op.Identity, [constant], [name], name))
    if "" not in versions_of(model.opset_import):
        model.opset_import.add(domain="", version=17)


def check_ports(model: onnx.ModelProto, types: ValueTypes, path: Path) -> None:
    """Check that requests can carry inputs and outputs.

    Raises:
        CompileError: one of them has a type that the Open Inference Protocol does not have.
    """
    for kind, ports in (("input", model.graph.input), ("output", model.graph.output)):
        for port in ports:
            loose: Loose | None = types.loose.get(port.name)
            if loose is not None and loose.array is None:
                raise CompileError(f"{path}: {kind}: {loose.reason}, which no request can carry")


def domains(node: onnx.NodeProto) -> Iterator[str]:
    """Yield the operator sets that ``node`` and its subgraphs use."""
    yield node.domain
    for graph in subgraphs(node):
        for inner in graph.node:
            yield from domains(inner)


class TakeCropsApart(Rewriter):
    """Replaces each Slice with constant places on several axes by one for each: rows, then columns.

    On rows (cutting/row_nodes.py) the first is what is read and the second a kernel. That is
    said behind ONNX Runtime, which would make one node of the rows that two patches share, and keep them.
    """

    def replaced(self, node: onnx.NodeProto) -> Iterator[onnx.NodeProto] | None:
        if op_of(node) != Op.Slice or len(node.input) <= _AXES:
            return None
        given = [array for name in node.input[1:] if (array := self.numbers(name)) is not None]
        is_known = len(given) == len(node.input) - 1 and given[0].size > 1
        is_crop = is_known and all((step == 1).all() for step in given[_AXES:])
        return self._one_by_one(node, given) if is_crop else None

    def _one_by_one(
        self, node: onnx.NodeProto, given: Sequence[NDArray[Any]]
    ) -> Iterator[onnx.NodeProto]:
        source, name, count = node.input[0], node.output[0], given[0].size
        for number in range(count):
            last = number == count - 1
            places = [
                self.constant(f"{name}.place{number}.{part}", item[number : number + 1])
                for part, item in zip(("start", "end", "axis"), given, strict=False)
            ]
            result = name if last else f"{name}.axis{number}"
            label = node.name if last else result
            yield new_node(Op.Slice, [source, *places], [result], label)
            source = result


class ScaleResizes(Rewriter):
    """Rewrites resizes that repeat elements by these factors to one form, whatever sizes and modes say.

    So a node makes the same of some rows as of all (models/compiler/cutting/row_nodes.py).
    """

    def replaced(self, node: onnx.NodeProto) -> list[onnx.NodeProto] | None:
        if op_of(node) != Op.Resize or self.versions[""] < _RESIZE_WITH_SIZES:
            return None
        operator = self.operator(node)
        factors = operator.factors if isinstance(operator, Resize) else None
        if factors is None or is_scaled(node):
            return None
        return [self.resize(node.input[0], node.output[0], factors, node.name, **_REPEATS)]


def is_scaled(node: onnx.NodeProto) -> bool:
    """Return whether a Resize that repeats elements would do the same with other sizes."""
    given = attributes(node)
    return not any(node.input[_SIZES:]) and given.items() >= _REPEATS.items()


def store_by_row(graph: Graph) -> Graph:
    """Return ``graph`` with constant matrices by output row, so that they can be split, if only they move.

    ``Gemm`` with transB=0 becomes transB=1, and so does a ``MatMul`` of one row; others compute several
    rows, whose results do not lie together by output channel. Nothing is copied here: a constant becomes
    a view with its axes swapped.
    """
    uses = Counter(name for node in graph.nodes for name in reads(node))
    has_gemm = graph.versions.get("", 0) >= _GEMM_WITHOUT_BIAS
    constants, nodes = dict(graph.constants), list(graph.nodes)
    for index, node in enumerate(nodes):
        if _is_gemm_by_column(node) or (has_gemm and _is_row_product(node, graph.values)):
            matrix = constants.get(node.input[1])
            if matrix is not None and matrix.ndim == 2 and uses[node.input[1]] == 1:
                constants[node.input[1]] = matrix.T
                nodes[index] = with_attributes(node, transB=1)
                if op_of(node) == Op.MatMul:
                    nodes[index].op_type = Op.Gemm.op_type
    return replace(graph, nodes=tuple(nodes), constants=constants)


def _is_gemm_by_column(node: onnx.NodeProto) -> bool:
    return traits_of(op_of(node)).computes(Op.Gemm) and not attributes(node).get("transB", 0)


def _is_row_product(node: onnx.NodeProto, values: Mapping[str, Array]) -> bool:
    if op_of(node) != Op.MatMul:
        return False
    row = values.get(node.input[0])
    return row is not None and len(row.shape) == 2 and row.shape[0] == 1 and row.dtype in _PRODUCTS


# Maxima of bytes before operators that keep the order of numbers; and pools with an unforeseen output.
#
# An operator that keeps the order of numbers maps the largest to the largest. So an activation
# by a table, or a concatenation that rounds again, may come behind the maxima, and has a fourth to do.
# What layers make is then read by maxima at once, and never lies in a plan (cutting/quantised_tasks.py).
#
# With ``ceil_mode`` a last window that begins in the padding is left out; the shape that is inferred
# counts it. Such a pool is said again with padding of which the shape comes that is computed.

# The axis of channels of such maxima.
_CHANNELS = 3


class PoolFirst(Rewriter):
    """Moves maxima of bytes before what keeps their order, where they alone read what that makes."""

    def replaced(self, node: onnx.NodeProto) -> list[onnx.NodeProto] | None:
        if op_of(node) != Op.NhwcMaxPool or len(node.output) > 1:
            return None
        return self._moved(node, node.input[0], node.output[0]) or None

    def _moved(self, pool: onnx.NodeProto, source: str, result: str) -> list[onnx.NodeProto]:
        """Return the operators that make ``result`` of maxima; none where ``source`` is not theirs."""
        maker = self.makers.get(source)
        places = () if maker is None else _places(maker)
        if maker is None or not places or self.uses[source] != 1:
            return []
        last, nodes = copied(maker, outputs=[result]), list[onnx.NodeProto]()
        for place in places:
            name, read = f"{result}/{place}", maker.input[place]
            last.input[place] = name
            further = self._moved(pool, read, name)
            nodes += further
            if further:
                continue
            largest = copied(pool, [read], [name], name)
            if read in self.makers and read not in self.behind:
                self.behind[read] = largest
            else:
                nodes.append(largest)
        return [*nodes, last]


def _places(node: onnx.NodeProto) -> tuple[int, ...]:
    """Return which inputs of ``node`` are numbers whose order it keeps, channel by channel."""
    traits = traits_of(op_of(node))
    parameters = {**traits.attributes, **attributes(node)}
    by_alpha = traits.keeps_order == "by_alpha" and parameters["alpha"] >= 0
    if not traits.on_bytes or not (by_alpha or traits.keeps_order == "yes"):
        return ()
    if traits.of is Op.Concat and parameters["axis"] not in (-1, _CHANNELS):
        return ()
    return traits.positions(len(node.input), "data")


def settle_pool(model: onnx.ModelProto, values: Mapping[str, Array]) -> bool:
    """Change the first pool of ``model`` whose output in ``values`` is not what is computed.

    Shapes behind it are then wrong, too: infer them again, and call this again until it returns False.
    """
    for node in model.graph.node:
        traits = traits_of(op_of(node))
        if traits.access != "windowed" or traits.on_bytes or node.input[0] not in values:
            continue
        known = attributes(node)
        if not known.get("ceil_mode", 0) or known.get("auto_pad", "NOTSET") != "NOTSET":
            continue
        windows = windows_of(known, known["kernel_shape"], values[node.input[0]].shape[2:])
        if values[node.output[0]].shape[2:] != windows.result:
            # What the last windows need behind the input, and what they are given.
            needed = [
                axis.fitted(length, n_outputs).behind
                for axis, length, n_outputs in zip(
                    windows.axes, windows.size, windows.result, strict=True
                )
            ]
            ends = [min(pair) for pair in zip(needed, windows.behind, strict=True)]
            if min(ends) < 0:  # windows so far apart that one less leaves a part of the input
                set_attributes(node, ceil_mode=0)
                ends = [max(pair) for pair in zip(needed, windows.behind, strict=True)]
            set_attributes(node, pads=[*windows.before, *ends])
            _forget_shapes(model.graph)
            return True
    return False


def _forget_shapes(graph: onnx.GraphProto) -> None:
    """Remove what was inferred from the larger output."""
    del graph.value_info[:]
    for port in graph.output:
        port.type.tensor_type.ClearField("shape")
