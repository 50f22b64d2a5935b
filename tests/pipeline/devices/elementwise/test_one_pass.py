"""Programs bound to arrays: which shapes go together, and which memory."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from loader.pool.pool import ReadPool
from models.packs.pack import Pack
from models.packs.target import host_target
from pipeline.devices.base import Kernel
from pipeline.devices.cpu import CpuDevice
from pipeline.devices.elementwise.one_pass import OnePass, chosen
from pipeline.devices.elementwise.operator_node import JOB_MODEL
from pipeline.devices.interface.native import CHAIN
from pipeline.execution.opened import open_pipeline, opened
from pipeline.planning.joined_launches import joined
from pipeline.planning.make import make_plan
from pipeline.planning.plan import Choice, Plan, partitioned
from pipeline.program.kernels import Chain, OrtGraph
from pipeline.program.partitions import Cuts
from pipeline.program.prepare import prepare, with_chains
from pipeline.program.program import PreparedPiece, Program
from pipeline.program.region_plan import Cut, Region, RowCut
from pipeline.program.sessions import Opened, opened_by
from pipeline.program.steps import row_network
from pipeline.schedule.architectures import ARCHITECTURES
from tests.examples import examples
from tests.models.nets import CHUNK_BYTES, inputs_for
from tests.pipeline.devices.elementwise.chains import library, needs_library, only
from tests.pipeline.devices.elementwise.test_engine import compiled
from tests.pipeline.program.regions import largest_regions

# What a device decides of chains is what plans count, and what is bound and run.

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
            self.one_pass = OnePass(library(), bind)
            self._operators = library().path

    def kept(self, graph: bytes, make: Callable[[bytes], Kernel]) -> Kernel:
        self.sessions.add(graph)
        return super().kept(graph, make)


class Case:
    """Packs as devices run them, and what they answer; Hypothesis would print all of it."""

    def __init__(self, pack: Pack, pool: ReadPool) -> None:
        self.pool = pool
        self.inputs = inputs_for({port.name: port.shape for port in pack.manifest.inputs})
        self.pack = pack
        self.programs, self.answers = dict[str, Program](), dict[str, bytes]()
        for chains in ("onnxruntime", "nodes", "library"):
            with closing(_Watched(chains)) as device:
                self.programs[chains] = program = prepare(pack, device)
                plan = make_plan(program, ARCHITECTURES["pre"])
                with opened(program, plan, device, pool) as engine:
                    self.answers[chains] = engine.run(self.inputs)[0]["y"].tobytes()


@pytest.fixture(scope="module")
def case(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Case]:
    pack = compiled(_NODES, _SHAPES, tmp_path_factory.mktemp("deciding"), "17,15")
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
    st.sampled_from([None, RowCut(1), RowCut(4), RowCut(20)]),
    st.integers(1, 2),
    st.booleans(),
    st.none() | st.integers(0, 200_000),
    st.integers(1, 2),
)


def planned(program: Program, way: Way) -> Plan:
    regions: tuple[Region, ...] = ()
    if way.cut is not None and host_target().block > 1:
        regions = largest_regions(row_network(program), way.cut)
    architecture = ARCHITECTURES[way.architecture]
    choice = Choice(
        chunk_bytes=None if way.coarse else CHUNK_BYTES, lanes=way.lanes, regions=regions
    )
    plan = make_plan(program, architecture, choice=choice)
    return joined(program, plan, way.most_joined)


def check_sessions(pack: Pack, counted: Sequence[Opened], loaded: set[bytes]) -> None:
    """Check that what was ``loaded`` is what was ``counted``: as many, and the same graphs of the pack."""
    sessions = {session for each in counted for session in each.sessions}
    assert (JOB_MODEL in loaded) == any(each.together_bytes for each in counted)
    loaded = loaded - {JOB_MODEL}
    assert len(loaded) == len(sessions)
    alone = {session[0] for session in sessions if len(session) == 1}
    assert {pack.graphs[part] for part in alone if isinstance(part, int)} <= loaded
    with_chains = sum(any(not isinstance(part, int) for part in session) for session in sessions)
    assert sum(CHAIN.encode() in graph for graph in loaded) == with_chains


@needs_library
@examples(6, many=500)
@given(way=WAYS)
def test_what_runs_is_what_was_counted(case: Case, way: Way) -> None:
    program = case.programs[way.chains]
    with closing(_Watched(way.chains)) as device:
        if way.partitions > 1:
            found = in_partitions(case, program, device, way)
        else:
            plan = planned(program, way)
            counted = [opened_by(program, plan.steps, plan.runs)]
            with opened(program, plan, device, case.pool) as engine:
                check_sessions(program.pack, counted, device.sessions)
                found = engine.run(case.inputs)[0]["y"].tobytes()
            check_sessions(program.pack, counted, device.sessions)  # no request loads one
    assert found == case.answers[way.chains]


def in_partitions(case: Case, program: Program, device: _Watched, way: Way) -> bytes:
    """Check the sessions of two partitions; return what they answer."""
    cuts = Cuts(program)
    place = cuts.places[len(cuts.places) // 2]
    parts = cuts.parts((place,))
    plans = tuple(planned(part, way._replace(lanes=1)) for part in parts)
    counted = [
        opened_by(part, plan.steps, plan.runs) for part, plan in zip(parts, plans, strict=True)
    ]
    plan = partitioned(plans, (place,), [cuts.edge_bytes(place)])
    with closing(open_pipeline(program, plan, [device, device], case.pool)) as pipeline:
        check_sessions(program.pack, counted, device.sessions)
        answer: Any = pipeline.run(case.inputs)[0]["y"]
    check_sessions(program.pack, counted, device.sessions)
    return bytes(answer.tobytes())


def without_kernels(pack: Pack, number: int) -> Pack:
    """Return ``pack`` where program ``number`` has a step that the library does not have."""
    programs = list(pack.manifest.programs)
    first, *others = programs[number].steps
    steps = (replace(first, kind="exp", reads=first.reads[:1], numbers=()), *others)
    programs[number] = replace(programs[number], steps=steps)
    manifest = replace(pack.manifest, programs=tuple(programs))
    return replace(pack, manifest=manifest)


@pytest.mark.skipif(host_target().block == 1, reason="no blocked layout here")
def test_a_piece_and_its_rows_run_in_one_pass_or_neither_does(case: Case) -> None:
    used = {
        item.elementwise.program for item in case.pack.manifest.row_operators if item.elementwise
    }
    doing = [number for number in used if case.pack.manifest.programs[number].steps]
    assert doing
    choose = partial(chosen, are_sessions=True)
    for number in doing:
        program = Program.as_compiled(without_kernels(case.pack, number))
        program = with_chains(program, choose)
        for place, item in enumerate(program.row_operators):
            own = item.first_piece, item.end_piece
            kernels = [piece.kernel for piece in program.pieces[slice(*own)]]
            kernels += [
                program.row_kernels[other]
                for other, made in enumerate(program.row_operators)
                if (made.first_piece, made.end_piece) == own
            ]
            assert len({isinstance(kernel, OrtGraph) for kernel in kernels}) == 1
            if item.elementwise and item.elementwise.program == number:
                assert isinstance(program.row_kernels[place], OrtGraph)
        assert chained(program)


@needs_library
def test_a_chain_has_a_session_of_its_own_size_only_beside_others(case: Case) -> None:
    for chains in ("nodes", "library"):
        program = case.programs[chains]
        found = opened_by(program, chained(program))
        assert not found.sessions
        assert bool(found.together_bytes) == (chains == "nodes")
    program = case.programs["nodes"]
    pieces = chained(program)
    programs = {
        piece.kernel.elementwise.program for piece in pieces if isinstance(piece.kernel, Chain)
    }
    pairs = [range(first, first + 2) for first in range(len(pieces) - 1)]
    assert len(programs) < len(opened_by(program, pieces, pairs).sessions)


def chained(program: Program) -> list[PreparedPiece]:
    """Return the pieces that run in one pass."""
    return [piece for piece in program.pieces if isinstance(piece.kernel, Chain)]


pytestmark = needs_library
_PRODUCT = only("multiply", 2)


@pytest.fixture(name="one_pass")
def _one_pass() -> OnePass:
    return OnePass(library())


@pytest.mark.parametrize(
    ("shape", "factor"),
    [
        ((1, 6, 5, 7), (1, 6, 1, 1)),
        ((1, 6, 5, 7), (6, 1, 1)),
        ((1, 4, 5, 7, 8), (1, 4, 1, 1, 8)),
        ((2, 6, 5), (2, 6, 1)),
        ((3, 4), (1, 4)),
        ((3, 4), (1, 1)),
        ((3, 4), ()),
    ],
)
def test_one_number_for_each_channel(
    one_pass: OnePass, shape: tuple[int, ...], factor: tuple[int, ...]
) -> None:
    rng = np.random.default_rng(6)
    x = rng.standard_normal(shape, np.float32)
    f = np.asarray(rng.standard_normal(factor, np.float32), np.float32)
    y = np.empty_like(x)
    launch = one_pass.bind(_PRODUCT, [x, f, y])
    assert launch is not None
    launch()
    np.testing.assert_array_equal(y, x * f)


@pytest.mark.parametrize(
    ("x", "f"),
    [
        (np.ones((2, 3, 4), np.float32), np.ones((2, 1, 4, 1), np.float32)),
        (np.ones((2, 3, 4), np.float32), np.ones((1, 3, 1), np.float32)[:, ::-1]),
        (np.ones((2, 3, 4), np.float64), np.ones((2, 3, 4), np.float32)),
        (np.ones((3, 4, 5), np.float32), np.ones((3, 1, 5), np.float16)),
        (np.ones((4, 3, 4, 2), np.float32), np.ones((1, 3, 1, 2), np.float32)),
    ],
)
def test_what_does_not_go_together_is_refused(
    one_pass: OnePass, x: NDArray[Any], f: NDArray[Any]
) -> None:
    assert one_pass.bind(_PRODUCT, [x, f, np.empty(x.shape, np.float32)]) is None


def test_memory_that_overlaps_is_refused_unless_it_is_the_same(one_pass: OnePass) -> None:
    memory = np.arange(40, dtype=np.float32)
    x, shifted, f = memory[:20], memory[1:21], np.full(20, 2, np.float32)
    assert one_pass.bind(_PRODUCT, [x, f, shifted]) is None
    launch = one_pass.bind(_PRODUCT, [x, f, x])
    assert launch is not None
    launch()
    np.testing.assert_array_equal(memory[:20], 2 * np.arange(20, dtype=np.float32))
    channel = memory[20:21]
    y = memory[20:40]
    assert one_pass.bind(_PRODUCT, [x, channel, y]) is None
