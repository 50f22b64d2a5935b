"""The serialised graphs of a bottleneck's operators (``GroupOperator`` of models/packs).

They take any number of rows and, but for depthwise convolutions, whose node says how many channels it has,
any number of channels: bottlenecks that are alike share them.
"""

from collections.abc import Iterator, Sequence

import onnx
from onnx import TensorProto, helper, numpy_helper

from models.compiler.analysis.graph import Graph
from models.compiler.cutting.bottlenecks import FoundBottleneck, GroupNodes
from models.compiler.cutting.pieces import IR_VERSION, renamed
from models.compiler.cutting.row_windows import padded
from models.graphs.nodes import attributes, with_attributes
from models.network.operators import Convolution


def group_graphs(
    graph: Graph, found: FoundBottleneck, elided: frozenset[int]
) -> Iterator[list[bytes]]:
    """Yield, for each operator of a bottleneck, its graphs in their order."""
    for item in found.operators:
        nodes = [graph.nodes[index] for index in item.nodes if index not in elided]
        if item.kind == "each":
            yield _of_sizes(graph, item, nodes[0], found.sizes)
        elif item.kind == "sum":
            yield list(_sums(graph, item, nodes[0]))
        else:
            yield [_serialised(graph, item, nodes)]


def _of_sizes(
    graph: Graph, item: GroupNodes, node: onnx.NodeProto, sizes: Sequence[int]
) -> list[bytes]:
    return [
        _serialised(graph, item, [_grouped(edge, size)])
        for size in sizes
        for edge in _edges(graph, node)
    ]


def _grouped(node: onnx.NodeProto, size: int) -> onnx.NodeProto:
    """Return a convolution of one channel each with ``size`` of them; others as they are."""
    return node if attributes(node).get("group", 1) == 1 else with_attributes(node, group=size)


def _edges(graph: Graph, node: onnx.NodeProto) -> Iterator[onnx.NodeProto]:
    """Yield ``node`` with all its padding, that above only, none, that below only; beside rows it stays."""
    operator = graph.operator(node)
    windows = operator.windows if isinstance(operator, Convolution) else None
    if windows is None or not any((*windows.before, *windows.behind)):
        yield from [node] * 4
        return
    (top, left), (bottom, right) = windows.before, windows.behind
    for above, below in ((1, 1), (1, 0), (0, 0), (0, 1)):
        yield padded(node, [above * top, left, below * bottom, right])


def _sums(graph: Graph, item: GroupNodes, node: onnx.NodeProto) -> Iterator[bytes]:
    """Yield the convolution as the first group has it, later ones, and the last one."""
    plain = with_attributes(node, activation=None, activation_params=None)
    yield _serialised(graph, item, [plain])
    source, weights = node.input[:2]
    for each in (plain, node):
        more = onnx.NodeProto()
        more.CopyFrom(each)
        del more.input[:]
        more.input.extend([source, weights, "", "so far"])
        yield _model(graph, [more], [*_ranks(graph, item)[:2], ("so far", 4)], (item.output, 4))


def _serialised(graph: Graph, item: GroupNodes, nodes: Sequence[onnx.NodeProto]) -> bytes:
    rank = len(graph.array(nodes[-1].output[0]).shape)
    return _model(graph, nodes, _ranks(graph, item), (nodes[-1].output[0], rank))


def _ranks(graph: Graph, item: GroupNodes) -> list[tuple[str, int]]:
    return [(tensor.name, len(graph.array(tensor.name).shape)) for tensor in item.inputs]


def _model(
    graph: Graph,
    nodes: Sequence[onnx.NodeProto],
    inputs: Sequence[tuple[str, int]],
    output: tuple[str, int],
) -> bytes:
    """Return ``nodes`` as a model of ports of so many dimensions, all of 32-bit floats."""
    names = {name: f"x{number}" for number, (name, _) in enumerate(inputs)}
    names[output[0]] = "y0"
    constants = {}
    for node in nodes:
        for name in (*node.input, *node.output):
            if name and name not in names:
                names[name] = f"t{len(names)}"
                if name in graph.constants:
                    constants[names[name]] = graph.constants[name]
    ports = [(names[name], rank) for name, rank in (*inputs, output)]
    described = [
        helper.make_tensor_value_info(name, TensorProto.FLOAT, [None] * rank)
        for name, rank in ports
    ]
    domains = {node.domain for node in nodes} | {""}
    model = helper.make_model(
        helper.make_graph(
            [renamed(node, names) for node in nodes],
            "",
            described[:-1],
            described[-1:],
            [numpy_helper.from_array(array, name) for name, array in constants.items()],
        ),
        opset_imports=[item for item in graph.opsets if item.domain in domains],
        ir_version=IR_VERSION,
    )
    return bytes(model.SerializeToString(deterministic=True))
