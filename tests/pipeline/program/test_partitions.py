"""What crosses between partitions, and what a partition is."""

from pathlib import Path

import onnx
import pytest

from models.compiler import CompileOptions, compile_onnx
from models.packs.pack import Pack, open_pack
from pipeline.planning.make import make_plan
from pipeline.program.partitions import Cuts, PartitionError
from pipeline.program.program import Program
from pipeline.program.steps import row_network
from pipeline.schedule.architectures import ARCHITECTURES
from tests.models.nets import CHUNK_BYTES, concat, residual
from tests.pipeline.writes import streamed


@pytest.fixture(scope="module")
def packs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Pack]:
    folder = Path(tmp_path_factory.mktemp("repository"))
    found = {}
    for name, model in (("residual", residual()), ("concat", concat())):
        onnx.save(model, folder / f"{name}.onnx")
        options = CompileOptions(chunk_bytes=CHUNK_BYTES)
        found[name] = open_pack(compile_onnx(folder / f"{name}.onnx", folder / name, options))
    return found


@pytest.mark.parametrize("name", ["residual", "concat"])
def test_partitions_have_all_pieces_and_their_weights(packs: dict[str, Pack], name: str) -> None:
    program = Program.as_compiled(packs[name])
    cuts = Cuts(program)
    assert len(cuts.places) > 1
    for place in cuts.places:
        parts = cuts.parts([place])
        assert sum((part.own_pieces for part in parts), ()) == program.pieces
        assert sum(part.weight_bytes for part in parts) == program.weight_bytes
        on_rows = [number for part in parts for number in row_network(part).own]
        assert on_rows == list(range(len(program.row_operators)))
        front, back = parts
        crossing = cuts.crossing(place)
        assert [port.value for port in front.outputs] == list(crossing)
        assert [port.value for port in back.inputs] == list(crossing)
        sizes = sum(program.values[value].n_bytes for value in crossing)
        assert sizes <= cuts.edge_bytes(place) < sizes + 64 * len(crossing)
        for part in parts:
            plan = make_plan(part, ARCHITECTURES["pre"])
            used = {step.span for step in plan.steps if step.span is not None}
            assert used <= set(plan.resident) | set(streamed(plan))


def test_a_cut_lies_between_layers(packs: dict[str, Pack]) -> None:
    """Not among the chunks of one, nor where only one piece is."""
    program = Program.as_compiled(packs["residual"])
    cuts = Cuts(program)
    chunks = {
        piece for layer in program.layers for piece in range(layer.first_piece + 1, layer.end_piece)
    }
    assert chunks
    assert not chunks & set(cuts.places)
    for place in (0, len(program.pieces), min(chunks)):
        with pytest.raises(PartitionError, match=f"before piece {place}"):
            cuts.parts([place])
    with pytest.raises(PartitionError, match="without pieces"):
        cuts.parts([cuts.places[0]] * 2)
    assert Cuts(cuts.parts(cuts.places)[0]).places == ()


def test_a_cut_inside_a_residual_block_takes_both_ways_along(packs: dict[str, Pack]) -> None:
    """Two values cross: what the convolutions make, and what is added to it later."""
    cuts = Cuts(Program.as_compiled(packs["residual"]))
    assert {len(cuts.crossing(place)) for place in cuts.places} == {1, 2}
