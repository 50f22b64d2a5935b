"""Which tiny nodes become one piece where values lie in the memory of others."""

from collections.abc import Collection
from typing import Any

import numpy as np
import onnx
import pytest
from numpy.typing import NDArray
from onnx import numpy_helper
from onnx.parser import parse_model

from models.compiler.analysis.alias import find_aliases
from models.compiler.cutting.cut import cut
from models.graphs.graph import Graph, ValueTypes
from models.graphs.reader import graph_of
from models.network.fields import Array
from models.packs.target import Target, cuda_target, host_target

CHUNK_BYTES = 1 << 20
CONSTANTS: dict[str, NDArray[Any]] = {
    "w": np.ones((8, 8, 1, 1), np.float32),
    "bias": np.ones(8, np.float32),
    "each": np.array([8, 1, 1, 1], np.int64),
}


def network(text: str, side: int = 4) -> Graph:
    """Return the graph of ``text``: x goes in, y comes out, images if nothing else is known of them."""
    shape = (1, 8, side, side)
    ports = f"(float[1,8,{side},{side}] x) => (float[a,b,c,d] y)"
    opsets = '"" : 17, "com.microsoft" : 1'
    model = parse_model(f"<ir_version: 8, opset_import: [{opsets}]> net {ports} {{ {text} }}")
    tensors = (numpy_helper.from_array(array, name) for name, array in CONSTANTS.items())
    model.graph.initializer.extend(tensors)
    names = ["x", *(name for node in model.graph.node for name in node.output)]
    inferred = onnx.shape_inference.infer_shapes(model).graph
    shapes = dict.fromkeys(names, shape) | {
        port.name: tuple(dim.dim_value for dim in port.type.tensor_type.shape.dim)
        for port in inferred.value_info
    }
    types = {name: Array(dtype="float32", shape=shape) for name, shape in shapes.items()}
    return graph_of(model).with_types(ValueTypes(types, {}))


def divided(graph: Graph, target: Target | None = None, starts: Collection[int] = ()) -> list[str]:
    """Return the results of the kernels of each piece."""
    aliases = find_aliases(graph)
    pieces, aliases = cut(graph, aliases, target or host_target(), CHUNK_BYTES, starts=starts)
    ranges = [range(piece.first_node, piece.end_node) for piece in pieces]
    return [
        " ".join(graph.nodes[index].output for index in nodes if index not in aliases.elided)
        for nodes in ranges
    ]


GATE = "a = Relu(x)  g = GlobalAveragePool(a)  f = Reshape(g, each)  y = Conv<group=8>(a, f)"


@pytest.mark.parametrize(
    ("side", "target", "pieces"),
    [
        (4, None, ["a g f y"]),
        (128, None, ["a g", "y"]),
        (4, cuda_target(72), ["a g", "y"]),
    ],
    ids=["tiny", "large", "GPU"],
)
def test_a_tiny_piece_reshapes_what_no_other_piece_reads(
    side: int, target: Target | None, pieces: list[str]
) -> None:
    assert divided(network(GATE, side), target) == pieces


def test_what_another_piece_reads_is_reshaped_without_a_kernel() -> None:
    graph = network(f"{GATE.replace('y =', 'b =')}  y = Conv<group=8>(b, f)")
    assert divided(graph) == ["a g", "b y"]


def test_ranges_of_one_value_are_written_by_several_pieces() -> None:
    graph = network(
        "a = Relu(x)  p = Sigmoid(a)  q = Tanh(a)  c = Concat<axis=1>(p, q)  y = Conv(c, w)"
    )
    assert divided(graph) == ["a p", "q", "y"]


SUM = "com.microsoft.FusedConv(b, w, bias, a)"


def test_a_sum_lies_over_what_its_operands_read() -> None:
    graph = network(f"a = Relu(x)  b = Conv(a, w)  s = {SUM}  y = Sigmoid(s)")
    assert divided(graph, starts=[1]) == ["a", "b s y"]


def test_no_sum_lies_over_what_its_piece_may_read_afterwards() -> None:
    graph = network(f"a = Relu(x)  b = Conv(a, w)  c = Sigmoid(a)  s = {SUM}  y = Add(s, c)")
    assert divided(graph, starts=[1]) == ["a", "b c", "s y"]
