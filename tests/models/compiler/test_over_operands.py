"""Results of operators on elements lie over operands that are unread afterwards, and only over those."""

import pytest

from models.compiler.analysis.alias import Aliases, find_aliases, lone_writes, over_operands
from models.graphs.graph import Graph
from models.network.fields import Array
from models.network.names import Op
from models.network.node import Node
from tests.examples import over

LARGE, SMALL = (1, 1 << 17), (1, 8)


def graph(
    *nodes: tuple[str, str, tuple[str, ...]],
    shape: tuple[int, ...] = LARGE,
    dtype: str = "float32",
) -> Graph:
    """Return a graph of nodes (operator, result, operands); ``x`` goes in, the last result out."""
    names = ["x", *(result for _, result, _ in nodes)]
    return Graph(
        nodes=tuple(Node(kind, reads, (result,)) for kind, result, reads in nodes),
        values={name: Array(dtype=dtype, shape=shape) for name in names},
        constants={},
        inputs=("x",),
        outputs=(nodes[-1][1],),
        opsets={},
    )


def parents(of: Graph, before: Aliases | None = None) -> dict[str, tuple[str, int]]:
    known = before or Aliases({}, frozenset())
    return over_operands(of, known, lone_writes(of, range(len(of.nodes)))).parents


BLOCK = (
    ("Conv", "a", ("x",)),
    ("Conv", "b", ("a",)),
    ("Add", "sum", ("a", "b")),
    ("Conv", "y", ("sum",)),
)


def test_a_sum_lies_over_what_was_made_last() -> None:
    assert parents(graph(*BLOCK)) == {"sum": ("b", 0)}


def test_so_does_a_sum_of_bytes() -> None:
    operands = ("a", "scale", "zero", "b", "scale", "zero", "scale", "zero")
    nodes = graph(*BLOCK[:2], (Op.QLinearAdd, "sum", operands), BLOCK[3])
    assert parents(nodes)["sum"] == ("b", 0)


@over("operator", ["Abs", "Reciprocal", "Sum"])
def test_operators_on_elements_write_over_their_operand_by_their_rows(operator: str) -> None:
    nodes = graph(("Conv", "a", ("x",)), (operator, "b", ("a",)), ("Conv", "y", ("b",)))
    assert parents(nodes) == {"b": ("a", 0)}


@pytest.mark.parametrize(("dtype", "found"), [("float32", {}), ("uint8", {"b": ("a", 0)})])
def test_limits_of_integers_do_and_those_of_floats_stay_in_their_chain(
    dtype: str, found: dict[str, tuple[str, int]]
) -> None:
    shape = (1, 1 << 19)  # of bytes as of floats it is large
    nodes = graph(
        ("Conv", "a", ("x",)),
        ("Clip", "b", ("a",)),
        ("Conv", "y", ("b",)),
        shape=shape,
        dtype=dtype,
    )
    assert parents(nodes) == found


def test_what_is_read_later_is_kept() -> None:
    again = (*BLOCK[:3], ("Conv", "c", ("b",)), ("Conv", "y", ("sum", "c")))
    assert parents(graph(*again)) == {"sum": ("a", 0)}


@over(
    "nodes",
    [
        (("Relu", "y", ("x",)),),
        (("Conv", "a", ("x",)), ("Add", "b", ("a", "a")), ("Conv", "y", ("a", "b"))),
        (("Conv", "a", ("x",)), ("Softmax", "y", ("a",))),
    ],
    ids=["an input of the model", "read again", "an operator that reads elsewhere"],
)
def test_nothing_that_is_needed_is_overwritten(
    nodes: tuple[tuple[str, str, tuple[str, ...]], ...],
) -> None:
    assert parents(graph(*nodes)) == {}


def test_two_names_of_one_memory_are_not_both_operands() -> None:
    held = graph(
        ("Conv", "a", ("x",)),
        ("Reshape", "b", ("a",)),
        ("Add", "sum", ("a", "b")),
        ("Conv", "y", ("sum",)),
    )
    before = Aliases({"b": ("a", 0)}, frozenset({1}))
    assert parents(held, before) == before.parents


def test_small_values_stay_inside_pieces() -> None:
    assert parents(graph(*BLOCK, shape=SMALL)) == {}


@over(
    "inputs, found",
    [
        (("a", "w", "", "b"), {"sum": ("b", 0)}),
        (("a", "w", "", "a"), {}),
        (("a", "w", "", "x"), {}),
        (("a", "b"), {}),
    ],
    ids=["what is added", "what is convolved, too", "an input of the model", "its weights"],
)
def test_a_blocked_convolution_lies_over_what_it_adds(
    inputs: tuple[str, ...], found: dict[str, tuple[str, int]]
) -> None:
    held = graph(
        *((Op.BlockedConv, result, operands) for _, result, operands in BLOCK[:2]),
        (Op.BlockedConv, "sum", inputs),
        (Op.BlockedConv, "y", ("sum",)),
    )
    assert find_aliases(held).parents == found
