"""A program beside its manifest: it belongs to its maker, and is freed with its last reference."""

import json

import pytest

from models.packs.pack import Pack
from models.records import plain
from pipeline.devices.cpu import CpuDevice
from pipeline.program.choice import chunk_sizes
from pipeline.program.kernels import OrtGraph
from pipeline.program.prepare import Abilities, prepare
from pipeline.program.program import Program, letting_go
from pipeline.program.row_network import RowNetwork
from pipeline.program.steps import row_network
from server.repository.records import from_json, to_json


class Able:
    """A device with these abilities and nothing else."""

    def __init__(self, abilities: Abilities) -> None:
        self._abilities = abilities

    def abilities(self) -> Abilities:
        return self._abilities


def test_what_is_made_of_it_is_made_once_and_is_its_own(tiny_pack: Pack) -> None:
    one, other = Program.as_compiled(tiny_pack), Program.as_compiled(tiny_pack)
    assert row_network(one) is row_network(one) is one.made(RowNetwork)
    assert row_network(one) is not row_network(other)
    before = row_network(one)
    with letting_go(one):
        assert row_network(one) is before
    assert row_network(one) is not before


def test_it_lets_go_also_where_planning_fails(tiny_pack: Pack) -> None:
    program = Program.as_compiled(tiny_pack)
    before = row_network(program)
    with pytest.raises(KeyError), letting_go(program):
        raise KeyError
    assert row_network(program) is not before


def test_the_last_block_that_plans_lets_go(tiny_pack: Pack) -> None:
    program = Program.as_compiled(tiny_pack)
    with letting_go(program):
        with letting_go(program):
            before = row_network(program)
        assert row_network(program) is before
    assert row_network(program) is not before


def test_what_was_made_is_not_sent_to_others(tiny_pack: Pack) -> None:
    program = Program.as_compiled(tiny_pack)
    alone = to_json(program)
    assert chunk_sizes(program)
    assert to_json(program) == alone
    sent = from_json(json.loads(json.dumps(alone)))
    assert chunk_sizes(sent) == chunk_sizes(program)
    assert sent.checksum == program.checksum


def test_a_device_without_abilities_runs_a_pack_as_it_was_compiled(tiny_pack: Pack) -> None:
    program = prepare(tiny_pack, Able(Abilities()))
    assert program.checksum == Program.as_compiled(tiny_pack).checksum
    kernels = [piece.kernel for piece in program.pieces]
    assert kernels == [OrtGraph(piece.graph, resident=False) for piece in tiny_pack.manifest.pieces]
    assert not program.joins
    assert all(isinstance(kernel, OrtGraph) for kernel in program.row_kernels)


def test_scratch_is_what_the_device_says(tiny_pack: Pack) -> None:
    def scratch_bytes(graph: bytes) -> int | None:
        return 64 if graph is tiny_pack.graphs[0] else None

    program = prepare(tiny_pack, Able(Abilities(scratch_bytes=scratch_bytes)))
    for piece, compiled in zip(program.pieces, tiny_pack.manifest.pieces, strict=True):
        assert piece.scratch_bytes == (compiled.scratch_bytes if piece.graph else 64)
    assert any(piece.graph == 0 for piece in program.pieces)


def test_graphs_join_with_all_of_their_pieces(tiny_pack: Pack) -> None:
    asked: list[bytes] = []

    def joins(graph: bytes) -> bool:
        asked.append(graph)
        return True

    program = prepare(tiny_pack, Able(Abilities(joins=joins)))
    assert len(asked) == len(set(asked))
    assert {tiny_pack.graphs[number] for number in program.joins} == set(asked)


def test_what_decides_is_in_its_checksum(tiny_pack: Pack) -> None:
    joining = Abilities(joins=lambda graph: True)
    found = [prepare(tiny_pack, Able(each)) for each in (Abilities(), joining, joining)]
    one, other, same = (each.checksum for each in found)
    assert one != other == same


def test_the_manifest_stays_as_the_file_says(tiny_pack: Pack) -> None:
    before = to_json(plain(tiny_pack.manifest))
    prepare(tiny_pack, CpuDevice(1))
    assert to_json(plain(tiny_pack.manifest)) == before
