"""A layer of a group of hidden channels is one launch with what turns or maps its tokens."""

from dataclasses import replace

import numpy as np
import pytest

from models.compiler.analysis.node_groups import FusedNodes
from models.compiler.cutting.activations import launches_of_groups
from models.compiler.cutting.chunks import rows_a_chunk
from models.graphs.graph import Graph
from models.network.fields import Array
from models.network.names import Op
from models.network.node import Node
from models.packs.target import host_target

_TOKENS, _WIDTH, _GROUP = 4096, 64, 128
_WEIGHT_BYTES = 4 * _WIDTH * _GROUP


def group_of_tokens() -> Graph:
    """A layer, out of blocks for attention, into them again, a layer that adds; then an activation."""
    image = Array(dtype="float32", shape=(1, _GROUP, 1, _TOKENS))
    total = Array(dtype="float32", shape=(1, _WIDTH, 1, _TOKENS))
    return Graph(
        nodes=(
            Node(Op.BlockedConv, ("x", "up"), ("blocked",)),
            Node(Op.ReorderOutput, ("blocked",), ("q",), {"channels_last": 1}),
            Node(Op.MultiHeadAttention, ("q", "q", "q"), ("o",)),
            Node(Op.ReorderInput, ("o",), ("turned",)),
            Node(Op.BlockedConv, ("turned", "down", "", "x"), ("sum",)),
            Node(Op.BlockedConv, ("sum", "up"), ("hidden",)),
            Node(Op.Gelu, ("hidden",), ("gelu",)),
            Node(Op.BlockedConv, ("gelu", "down", "", "sum"), ("y",)),
        ),
        values={
            **dict.fromkeys(("blocked", "q", "o", "turned", "hidden", "gelu"), image),
            **dict.fromkeys(("x", "sum", "y"), total),
        },
        constants={
            "up": np.zeros((_GROUP, _WIDTH, 1, 1), np.float32),
            "down": np.zeros((_WIDTH, _GROUP, 1, 1), np.float32),
        },
        inputs=("x",),
        outputs=("y",),
        opsets={},
    )


def test_layers_are_launched_with_reorders_and_activations() -> None:
    assert list(launches_of_groups(group_of_tokens(), _WEIGHT_BYTES, {})) == [0, 3, 6]


@pytest.mark.parametrize("index", [0, 3, 6])
def test_a_node_is_in_one_launch(index: int) -> None:
    groups = {index: FusedNodes(index, index + 1, None)}
    assert index not in launches_of_groups(group_of_tokens(), _WEIGHT_BYTES, groups)


def test_a_layer_whose_result_is_turned_is_no_chunks() -> None:
    graph, target = group_of_tokens(), host_target()
    assert rows_a_chunk(graph, range(2), target, 1) is None
    assert rows_a_chunk(graph, range(1), target, 1) is not None or target.block == 1


def test_larger_layers_are_cut_into_chunks() -> None:
    assert not launches_of_groups(group_of_tokens(), _WEIGHT_BYTES - 1, {})


def test_what_another_node_reads_is_there_for_it() -> None:
    graph = group_of_tokens()
    assert list(launches_of_groups(replace(graph, outputs=("y", "gelu")), _WEIGHT_BYTES, {})) == [
        0,
        3,
    ]


def test_networks_without_attention_stay_as_they_are() -> None:
    graph = group_of_tokens()
    nodes = tuple(
        Node(Op.Identity, ("q",), ("o",)) if node.operator == Op.MultiHeadAttention else node
        for node in graph.nodes
    )
    assert not launches_of_groups(replace(graph, nodes=nodes), _WEIGHT_BYTES, {})
