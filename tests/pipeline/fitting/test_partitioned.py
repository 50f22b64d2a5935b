"""Plans of partitions: within a budget, balanced, and refused where a network cannot be cut."""

from pathlib import Path

import pytest

from models.packs.pack import Pack, open_pack
from models.packs.records.pieces import Operand, Piece
from pipeline.fitting.partitioned import fit_partitions
from pipeline.fitting.row_variants import multiplications
from pipeline.planning.plan import PipelinePlan, PlanError
from pipeline.program.partitions import Cuts
from pipeline.program.program import Program
from pipeline.schedule.architectures import ARCHITECTURES
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
        assert isinstance(plan, PipelinePlan)
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
    assert isinstance(fitted.plan, PipelinePlan)
    assert f"cut before piece {fitted.plan.cuts[0]}" in reason
    assert "in 2 buffers" in reason
    document = fitted.plan.as_dict()
    assert [part["total_bytes"] for part in document["partitions"]] == [
        part.total_bytes for part in fitted.plan.partitions
    ]


def test_too_many_partitions_are_refused_with_how_many_there_may_be(pack: Pack) -> None:
    program = Program.as_compiled(pack)
    most = len(Cuts(program).places) + 1
    fit_partitions(program, AUTO, most)
    with pytest.raises(PlanError, match=f"into {most + 1} partitions: .* {most} may begin one"):
        fit_partitions(program, AUTO, most + 1)


@pytest.mark.parametrize(
    ("weights", "made", "times"),
    [
        ((64, 3, 7, 7), (1, 64, 112, 112), 64 * 3 * 49 * 112 * 112),
        ((96, 1, 3, 3), (1, 96, 14, 14), 96 * 9 * 14 * 14),
        ((10, 512), (1, 10), 5120),
        ((512, 10), (3, 10), 3 * 5120),
        ((64,), (1, 64, 8, 8), 0),
    ],
)
def test_multiplications_of_a_piece(
    weights: tuple[int, ...], made: tuple[int, ...], times: int
) -> None:
    def operand(kind: str, shape: tuple[int, ...]) -> Operand:
        return Operand(kind=kind, index=0, dtype="float32", shape=shape)  # type: ignore[arg-type]

    piece = Piece(
        graph=0, span=0, inputs=(operand("span", weights),), outputs=(operand("value", made),)
    )
    assert multiplications(piece) == times
