"""Nodes that run early or late so that less is kept: any order of a graph stays one, and keeps no more."""

import random
from dataclasses import replace

from models.compiler.analysis.lean_order import with_less_kept
from models.graphs.graph import Graph
from models.network.fields import Array
from models.network.names import Op
from models.network.node import Node
from tests.examples import over


def graph(nodes: list[tuple[str, tuple[str, ...]]], sizes: dict[str, int], output: str) -> Graph:
    """Return a graph of nodes that each make the value they are called by."""
    return Graph(
        nodes=tuple(Node(Op.Concat, inputs, (name,)) for name, inputs in nodes),
        values={name: Array(dtype="uint8", shape=(size,)) for name, size in sizes.items()},
        constants={},
        inputs=("x",),
        outputs=(output,),
        opsets={},
    )


def names(held: Graph) -> list[str]:
    return [node.output for node in held.nodes]


def peak(held: Graph) -> int:
    """Return the most bytes that are kept at once."""
    last = {name: number for number, node in enumerate(held.nodes) for name in node.reads}
    last |= dict.fromkeys(held.outputs, len(held.nodes))
    first = {node.output: number for number, node in enumerate(held.nodes)}
    return max(
        sum(held.values[name].n_bytes for name in first if first[name] <= now <= last.get(name, -1))
        for now in range(len(held.nodes))
    )


def test_a_route_waits_as_what_is_made_of_it() -> None:
    before = graph(
        [("a", ("x",)), ("b", ("a",)), ("c", ("b",)), ("small", ("a",)), ("y", ("c", "small"))],
        {"x": 1, "a": 100, "b": 50, "c": 50, "small": 10, "y": 10},
        "y",
    )
    after = with_less_kept(before)
    assert names(after).index("small") < names(after).index("c")
    assert peak(after) < peak(before)


def test_a_projection_waits_until_it_is_added() -> None:
    before = graph(
        [("a", ("x",)), ("large", ("a",)), ("b", ("a",)), ("c", ("b",)), ("y", ("c", "large"))],
        {"x": 1, "a": 10, "large": 40, "b": 40, "c": 10, "y": 10},
        "y",
    )
    after = with_less_kept(before)
    assert names(after) == ["a", "b", "c", "large", "y"]
    assert peak(after) < peak(before)


def test_a_head_whose_result_stays_runs_last_with_all_that_hangs_on_it() -> None:
    before = graph(
        [
            ("a", ("x",)),
            ("wide", ("a",)),
            ("head", ("wide",)),
            ("b", ("a",)),
            ("c", ("b",)),
            ("y", ("c",)),
        ],
        {"x": 1, "a": 30, "wide": 60, "head": 60, "b": 30, "c": 30, "y": 10},
        "y",
    )
    before = replace(before, outputs=("y", "head"))
    after = with_less_kept(before)
    assert names(after) == ["a", "b", "c", "y", "wide", "head"]
    assert peak(after) < peak(before)


@over("seed", range(40))
def test_every_node_still_reads_what_was_made_before(seed: int) -> None:
    drawn = random.Random(seed)
    made_so_far, nodes, sizes = ["x"], [], {"x": 8}
    for number in range(drawn.randint(3, 25)):
        name = f"v{number}"
        nodes.append(
            (name, tuple(drawn.sample(made_so_far, min(len(made_so_far), drawn.randint(1, 2)))))
        )
        sizes[name] = drawn.randint(1, 64)
        made_so_far.append(name)
    before = graph(nodes, sizes, made_so_far[-1])
    after = with_less_kept(before)
    assert sorted(names(after)) == sorted(names(before))
    known = {"x"}
    for node in after.nodes:
        assert known.issuperset(node.reads)
        known.update(node.made)


def test_a_layer_that_adds_what_it_reads_runs_when_nothing_else_does() -> None:
    """Nothing is kept less so in whole tensors, but on rows: the pool before the layer with a shortcut."""
    held = graph(
        [("a", ("x",)), ("b", ("a", "w", "v", "a")), ("pool", ("a",)), ("y", ("b", "pool"))],
        {"x": 1, "a": 100, "b": 100, "pool": 100, "y": 200},
        "y",
    )
    kinds = (Op.Conv, Op.Conv, Op.MaxPool, Op.Concat)
    pairs = zip(held.nodes, kinds, strict=True)
    held = replace(held, nodes=tuple(replace(node, operator=kind) for node, kind in pairs))
    assert names(with_less_kept(held)) == ["a", "pool", "b", "y"]


def groups_of_tokens() -> Graph:
    """Attention, and two groups of hidden channels that are added to its result, the second one first."""
    sizes = {"a": 40, "small": 10, "smaller": 10, "first": 40, "second": 40}
    nodes = (
        Node(Op.MultiHeadAttention, ("x", "x", "x"), ("a",)),
        Node(Op.Gelu, ("x",), ("smaller",)),
        Node(Op.Gelu, ("x",), ("small",)),
        Node(Op.BlockedConv, ("small", "w", "", "a"), ("first",)),
        Node(Op.BlockedConv, ("smaller", "w", "", "first"), ("second",)),
    )
    return Graph(
        nodes=nodes,
        values={name: Array(dtype="uint8", shape=(size,)) for name, size in sizes.items()}
        | {"x": Array(dtype="uint8", shape=(100,))},
        constants={},
        inputs=("x",),
        outputs=("second",),
        opsets={},
    )


def test_a_group_is_added_before_another_one_begins() -> None:
    order = names(with_less_kept(groups_of_tokens()))
    assert order.index("first") < order.index("smaller")
