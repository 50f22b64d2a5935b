"""Which operators of a bottleneck run in which pass over its groups."""

from models.packs.records.row_parts import Bottleneck, GroupInput, GroupOperator
from pipeline.program.channels import passes

_SHAPE = (1, 64, 8, 8)


def made_of(kind: str, *numbers: int) -> GroupOperator:
    inputs = tuple(GroupInput(made=number, axis="channels") for number in numbers)
    return GroupOperator(kind=kind, graphs=(0,), inputs=inputs, shape=_SHAPE)  # type: ignore[arg-type]


def bottleneck(*operators: GroupOperator) -> Bottleneck:
    return Bottleneck(
        first_piece=0, end_piece=1, channels=64, sizes=(16,), operators=operators, output=0
    )


def test_what_a_gate_is_made_of_is_made_again_for_the_sum() -> None:
    operators = [made_of("each"), made_of("mean", 0), made_of("once", 1), made_of("each", 0, 2)]
    found = passes(bottleneck(*operators, made_of("sum", 3)))
    assert found == [[0, 1, 2], [0, 3, 4]]


def test_a_long_chain_of_doubled_edges_is_followed_once() -> None:
    """A file says how long: neither time nor stack may grow with the ways through it."""
    count = 2000
    chain = [made_of("each", number - 1, number - 1) for number in range(1, count)]
    found = passes(bottleneck(made_of("each"), *chain, made_of("sum", count - 1)))
    assert found == [list(range(count + 1))]
