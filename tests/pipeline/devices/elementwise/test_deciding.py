"""What a device decides of chains is what plans count, and what is bound and run."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import replace
from typing import Any, NamedTuple

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from loader.pool.pool import ReadPool
from models.packs.pack import Pack
from models.packs.target import host_target
from pipeline.devices.base import Kernel
from pipeline.devices.cpu import CpuDevice
from pipeline.devices.elementwise.deciding import with_chains
from pipeline.devices.elementwise.job_session import JOB
from pipeline.devices.elementwise.one_pass import OnePass
from pipeline.devices.elementwise.operator_node import OPERATOR
from pipeline.execution.opened import open_pipeline, opened
from pipeline.planning.joining.joined import joined
from pipeline.planning.make import make_plan
from pipeline.planning.partitions.plan import pipeline_plan
from pipeline.planning.plan import Choice, Plan
from pipeline.program.cuts import Boxes, Cut, Region, Rows
from pipeline.program.partitions import Cuts
from pipeline.program.sessions import Opened, opened_by
from pipeline.program.steps import row_network
from pipeline.schedule.architectures import ARCHITECTURES
from pipeline.tiles.tiled_pack import tiled_pack
from tests.models.nets import CHUNK_BYTES, inputs_for
from tests.pipeline.devices.elementwise.chains import library, needs_library
from tests.pipeline.devices.elementwise.test_engine import compiled
from tests.pipeline.program.regions import largest_regions

# Equal chains of other sizes, the last one short.
_NODES = """
    a = Conv<pads=[1,1,1,1]>(x, wa)
    s = Softplus(a)
    t = Tanh(s)
    mish = Mul(a, t)
    b = Conv<pads=[1,1,1,1]>(mish, wb)
    u = Sigmoid(b)
    silu = Mul(b, u)
    gated = Add(silu, b)
    c = Conv<pads=[2,2,2,2]>(gated, wb)
    v = Softplus(c)
    w = Tanh(v)
    less = Mul(c, w)
    d = Conv<pads=[1,1,1,1]>(less, wb)
    f = Sigmoid(d)
    g = Mul(d, f)
    more = Add(g, d)
    h = Conv<strides=[3,3]>(more, wb)
    j = Softplus(h)
    k = Tanh(j)
    short = Mul(h, k)
    y = Conv(short, wc)
"""
_SHAPES = {"wa": (32, 8, 3, 3), "wb": (32, 32, 3, 3), "wc": (16, 32, 1, 1)}


class _Watched(CpuDevice):
    """Remembers of what it was asked for sessions.

    ``chains``: computed by "onnxruntime" as they were compiled, by "nodes" in it, or by the "library".
    """

    def __init__(self, chains: str) -> None:
        super().__init__(1, native=False)
        self.sessions: set[bytes] = set()
        if chains != "onnxruntime":
            bind = self._bind_chain if chains == "nodes" else None
            self.one_pass = OnePass(library(), 1, bind)
            self._operators = library().path

    def kept(self, graph: bytes, make: Callable[[bytes], Kernel]) -> Kernel:
        self.sessions.add(graph)
        return super().kept(graph, make)


class Case:
    """Packs as devices run them, and what they answer; Hypothesis would print all of it."""

    def __init__(self, pack: Pack, pool: ReadPool) -> None:
        self.pool = pool
        self.inputs = inputs_for({port.name: port.shape for port in pack.manifest.inputs})
        self.packs, self.answers = dict[str, Pack](), dict[str, bytes]()
        for chains in ("onnxruntime", "nodes", "library"):
            with closing(_Watched(chains)) as device:
                self.packs[chains] = fitted = device.fitted(pack)
                plan = make_plan(fitted.manifest, ARCHITECTURES["pre"])
                with opened(fitted, plan, device, pool) as engine:
                    self.answers[chains] = engine.run(self.inputs)[0]["y"].tobytes()


@pytest.fixture(scope="module")
def case(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Case]:
    pack = tiled_pack(compiled(_NODES, _SHAPES, tmp_path_factory.mktemp("deciding"), "17,15"))
    with closing(ReadPool()) as pool:
        yield Case(pack, pool)


class Way(NamedTuple):
    """How a pack is opened."""

    chains: str
    architecture: str
    cut: Cut | None
    lanes: int
    coarse: bool
    most_joined: int | None
    partitions: int


WAYS = st.builds(
    Way,
    st.sampled_from(["nodes", "library", "onnxruntime"]),
    st.sampled_from(["pre", "2s", "auto", "seq"]),
    st.sampled_from([None, Rows(1), Rows(4), Rows(20), Boxes(6, 8)]),
    st.integers(1, 2),
    st.booleans(),
    st.none() | st.integers(0, 200_000),
    st.integers(1, 2),
)


def planned(pack: Pack, way: Way) -> Plan:
    regions: tuple[Region, ...] = ()
    if way.cut is not None and host_target().block > 1:
        regions = largest_regions(row_network(pack.manifest), way.cut)
    architecture = ARCHITECTURES[way.architecture]
    choice = Choice(
        chunk_bytes=None if way.coarse else CHUNK_BYTES, lanes=way.lanes, regions=regions
    )
    plan = make_plan(pack.manifest, architecture, choice=choice)
    return joined(pack.manifest, plan, way.most_joined)


def check_sessions(pack: Pack, counted: Sequence[Opened], loaded: set[bytes]) -> None:
    """Check that what was ``loaded`` is what was ``counted``: as many, and the same graphs of the pack."""
    sessions = {session for each in counted for session in each.sessions}
    assert (JOB in loaded) == any(each.together_bytes for each in counted)
    loaded = loaded - {JOB}
    assert len(loaded) == len(sessions)
    alone = {session[0] for session in sessions if len(session) == 1}
    assert {pack.graphs[part] for part in alone if isinstance(part, int)} <= loaded
    with_chains = sum(any(not isinstance(part, int) for part in session) for session in sessions)
    assert sum(OPERATOR.encode() in graph for graph in loaded) == with_chains


@needs_library
@settings(max_examples=30)
@given(way=WAYS)
def test_what_runs_is_what_was_counted(case: Case, way: Way) -> None:
    pack = case.packs[way.chains]
    with closing(_Watched(way.chains)) as device:
        if way.partitions > 1:
            found = in_partitions(case, pack, device, way)
        else:
            plan = planned(pack, way)
            counted = [opened_by(pack.manifest, plan.steps, plan.runs)]
            with opened(pack, plan, device, case.pool) as engine:
                check_sessions(pack, counted, device.sessions)
                found = engine.run(case.inputs)[0]["y"].tobytes()
            check_sessions(pack, counted, device.sessions)  # no request loads one
    assert found == case.answers[way.chains]


def in_partitions(case: Case, pack: Pack, device: _Watched, way: Way) -> bytes:
    """Check the sessions of two partitions; return what they answer."""
    cuts = Cuts(pack.manifest)
    place = cuts.places[len(cuts.places) // 2]
    parts = [replace(pack, manifest=manifest) for manifest in cuts.parts((place,))]
    plans = tuple(planned(part, way._replace(lanes=1)) for part in parts)
    counted = [
        opened_by(part.manifest, plan.steps, plan.runs)
        for part, plan in zip(parts, plans, strict=True)
    ]
    plan = pipeline_plan(plans, (place,), [cuts.edge_bytes(place)])
    with closing(open_pipeline(pack, plan, [device, device], case.pool)) as pipeline:
        check_sessions(pack, counted, device.sessions)
        answer: Any = pipeline.run(case.inputs)[0]["y"]
    check_sessions(pack, counted, device.sessions)
    return bytes(answer.tobytes())


def without_kernels(pack: Pack, number: int) -> Pack:
    """Return ``pack`` where program ``number`` has a step that the library does not know."""
    programs = list(pack.manifest.programs)
    first, *others = programs[number].steps
    steps = (replace(first, kind="exp", reads=first.reads[:1], numbers=()), *others)
    programs[number] = replace(programs[number], steps=steps)
    manifest = pack.manifest.model_copy(update={"programs": tuple(programs)})
    return replace(pack, manifest=manifest)


@pytest.mark.skipif(host_target().block == 1, reason="no blocked layout here")
def test_a_piece_and_its_rows_run_in_one_pass_or_neither_does(case: Case) -> None:
    pack = case.packs["onnxruntime"]
    used = {item.elementwise.program for item in pack.manifest.row_operators if item.elementwise}
    doing = [number for number in used if pack.manifest.programs[number].steps]
    assert doing
    for number in doing:
        manifest = with_chains(without_kernels(pack, number), are_sessions=True).manifest
        for item in manifest.row_operators:
            own = item.first_piece, item.end_piece
            chains = [piece.chain for piece in manifest.pieces[slice(*own)]]
            chains += [
                other.chain
                for other in manifest.row_operators
                if (other.first_piece, other.end_piece) == own
            ]
            assert len({chain is None for chain in chains}) == 1
            if item.elementwise and item.elementwise.program == number:
                assert item.chain is None
        assert any(piece.chain for piece in manifest.pieces)


@needs_library
def test_a_chain_has_a_session_of_its_own_size_only_beside_others(case: Case) -> None:
    for chains in ("nodes", "library"):
        manifest = case.packs[chains].manifest
        found = opened_by(manifest, [piece for piece in manifest.pieces if piece.chain])
        assert not found.sessions
        assert bool(found.together_bytes) == (chains == "nodes")
    manifest = case.packs["nodes"].manifest
    pieces = [piece for piece in manifest.pieces if piece.chain]
    programs = {piece.elementwise.program for piece in pieces if piece.elementwise is not None}
    pairs = [range(first, first + 2) for first in range(len(pieces) - 1)]
    assert len(programs) < len(opened_by(manifest, pieces, pairs).sessions)
