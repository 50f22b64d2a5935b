"""Plans of partitions: within a budget, balanced, and refused where a network cannot be cut."""

from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from onnx import helper
from onnx.reference import ReferenceEvaluator

from models.network.catalogue import read_operator
from models.network.fields import Array
from models.network.node import KnownTensors, Node
from models.network.operators.reading import Convolution
from models.packs.pack import Pack, open_pack
from models.packs.records.pieces import Operand, Piece
from pipeline.fitting.partitioned import balanced, fit_partitions, partition_seconds
from pipeline.planning.plan import PartitionedPlan, PlanError
from pipeline.program.kernels import OrtGraph
from pipeline.program.partitions import Cuts
from pipeline.program.program import PreparedPiece, Program
from pipeline.program.work import multiplications
from pipeline.schedule.architectures import ARCHITECTURES
from tests.examples import over
from tests.pipeline.small import small_pack

AUTO = ARCHITECTURES["auto"]


@pytest.fixture(scope="module")
def pack(tmp_path_factory: pytest.TempPathFactory) -> Pack:
    return open_pack(small_pack(Path(tmp_path_factory.mktemp("repository"))))


def test_plans_fit_in_what_there_is(pack: Pack) -> None:
    """The smallest one where there is less; all that is there counts, edges twice."""
    program = Program.as_compiled(pack)
    least = fit_partitions(program, AUTO, 2).plan
    plan, totals = least, []
    for room in (0, least.total_bytes, least.total_bytes + (64 << 10), 1 << 40):
        plan = fit_partitions(program, AUTO, 2, room).plan
        assert isinstance(plan, PartitionedPlan)
        assert plan.total_bytes <= max(room, least.total_bytes)
        edges = [Cuts(program).edge_bytes(cut) for cut in plan.cuts]
        assert plan.edge_bytes == 2 * sum(edges)
        parts = sum(part.total_bytes for part in plan.partitions)
        assert plan.total_bytes == parts + plan.edge_bytes == sum(plan.memory.values())
        totals.append(plan.total_bytes)
    assert totals[0] == totals[1] == least.total_bytes < totals[-1]
    assert plan.read_bytes == 0, "all weights stay where there is room"


def test_reasons_say_where_and_how_much(pack: Pack) -> None:
    fitted = fit_partitions(Program.as_compiled(pack), AUTO, 2)
    (reason,) = fitted.reasons
    assert isinstance(fitted.plan, PartitionedPlan)
    assert f"cut before piece {fitted.plan.cuts[0]}" in reason
    assert "in 2 buffers" in reason


def test_too_many_partitions_are_refused_with_how_many_there_may_be(pack: Pack) -> None:
    program = Program.as_compiled(pack)
    most = len(Cuts(program).places) + 1
    fit_partitions(program, AUTO, most)
    with pytest.raises(PlanError, match=f"into {most + 1} partitions: .* {most} may begin one"):
        fit_partitions(program, AUTO, most + 1)


@over(
    "weights, output, times",
    [
        ((64, 3, 7, 7), (1, 64, 112, 112), 64 * 3 * 49 * 112 * 112),
        ((96, 1, 3, 3), (1, 96, 14, 14), 96 * 9 * 14 * 14),
        ((10, 512), (1, 10), 5120),
        ((512, 10), (3, 10), 3 * 5120),
        ((64,), (1, 64, 8, 8), 0),
    ],
)
def test_multiplications_of_a_piece(
    weights: tuple[int, ...], output: tuple[int, ...], times: int
) -> None:
    assert multiplications_of(weights, output) == times


def multiplications_of(weights: tuple[int, ...], output: tuple[int, ...]) -> int:
    def operand(kind: str, shape: tuple[int, ...]) -> Operand:
        return Operand(kind=kind, index=0, dtype="float32", shape=shape)  # type: ignore[arg-type]

    piece = Piece(
        graph=0, span=0, inputs=(operand("span", weights),), outputs=(operand("value", output),)
    )
    return multiplications(PreparedPiece.of(piece, OrtGraph(0, resident=False)))


@given(
    st.integers(1, 3), st.integers(1, 4), st.integers(1, 3), st.integers(1, 3), st.integers(0, 1)
)
def test_multiplications_are_the_macs_of_a_convolution(
    groups: int, channels: int, filters: int, stride: int, pad: int
) -> None:
    weight = (groups * filters, channels, 3, 2)
    x = np.zeros((1, groups * channels, 7, 6), np.float32)
    arrays = {"x": x, "w": np.zeros(weight, np.float32)}
    attributes: dict[str, Any] = {"group": groups, "strides": [stride] * 2, "pads": [pad] * 4}
    node = helper.make_node("Conv", [*arrays], ["y"], **attributes)
    tensors = KnownTensors(
        lambda name: Array(dtype="float32", shape=arrays[name].shape), arrays.get
    )
    read = read_operator(Node("Conv", tuple(arrays), ("y",), attributes, 18), tensors)
    assert isinstance(read, Convolution)
    (y,) = map(np.asarray, ReferenceEvaluator(node).run(None, arrays))
    assert read.macs == multiplications_of(weight, y.shape) == y.size * channels * 3 * 2


# Cuts that balance partitions, beside trying all.

SECONDS = st.lists(st.sampled_from([0.0, 1e-5, 1e-3, 2e-3, 5e-3]), min_size=1, max_size=9)


@given(SECONDS, st.integers(1, 4), st.data())
def test_no_cut_is_better(seconds: list[float], partitions: int, data: st.DataObject) -> None:
    """The slowest is within 2 % of the least there is; of those that are, the least crosses."""
    possible = range(1, len(seconds))
    places = sorted(data.draw(st.sets(st.sampled_from(possible)))) if possible else []
    crossing = [data.draw(st.integers(0, 5)) for _ in places]
    chosen = balanced(seconds, places, crossing, partitions)
    every = list(combinations(places, partitions - 1))
    if not every:
        assert chosen is None
        return
    assert chosen in every
    slowest = {cuts: max(partition_seconds(seconds, cuts)) for cuts in every}
    least = min(slowest.values())
    alike = [cuts for cuts, took in slowest.items() if took <= 1.02 * least + 1e-12]
    bytes_of = dict(zip(places, crossing, strict=True))
    assert chosen in alike
    assert sum(map(bytes_of.__getitem__, chosen)) <= min(
        sum(map(bytes_of.__getitem__, cuts)) for cuts in alike if slowest[cuts] <= 1.0199 * least
    )


def test_halves_of_even_pieces() -> None:
    assert balanced([1.0] * 8, range(1, 8), [1] * 7, 2) == (4,)
    assert balanced([1.0] * 9, range(1, 9), [1] * 8, 3) == (3, 6)
    assert balanced([1.0] * 8, [2, 5], [1, 1], 2) == (5,)
