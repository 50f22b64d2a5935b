"""Weights that layers share: once in the file, once in memory where they stay, the same answers."""

from dataclasses import replace
from itertools import accumulate
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import numpy_helper

from models.compiler import CompileOptions, compile_onnx
from models.errors import PackError
from models.packs.names import Store
from models.packs.pack import Pack, open_pack
from models.packs.target import host_target
from models.zoo.builder import SkeletonBuilder, ZooTensor
from pipeline.fitting.fit import fit
from pipeline.fitting.wanted import LEAST
from pipeline.planning.make import make_plan
from pipeline.planning.plan import Choice, Plan
from pipeline.planning.smallest import SmallestPlans
from pipeline.planning.streams import streams
from pipeline.program.choice import SameSpans, shared_bytes
from pipeline.program.partitions import Cuts
from pipeline.program.program import PreparedPiece, Program
from pipeline.schedule.architectures import ARCHITECTURES
from tests.models.nets import CHUNK_BYTES, answers, filled, parsed, written
from tests.models.packs.test_pack import edit, put
from tests.models.refusal import refuses
from tests.models.streamed import compiled, same, streamed

OPTIONS = CompileOptions(chunk_bytes=CHUNK_BYTES)
IMAGE = np.random.default_rng(0).standard_normal((1, 3, 24, 24), np.float32)


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two halves of an image through the same layers, whose batch norms are folded apart; then a third."""
    net = SkeletonBuilder("siamese", 24)

    def seen(x: ZooTensor, last: str) -> ZooTensor:
        for label, channels in (("one", 32), ("two", 64), (last, 64)):
            x = net.relu(net.norm(net.conv(x, channels, 3, label=label), label=f"{label}.norm"))
        return net.global_pool(x)

    halves = [seen(net.crop(net.image, 0, left, 24, 12), "three") for left in (0, 12)]
    alone = seen(net.crop(net.image, 0, 6, 24, 12), "four")
    total = net.add(net.add(*halves), alone)
    model = filled(net.model(net.linear(net.flatten(total), 10)))
    return written(model, tmp_path_factory.mktemp("nets") / "siamese.onnx")


@pytest.fixture(scope="module")
def pack(source: Path) -> Pack:
    return compiled(source, source.parent, OPTIONS)


def test_the_file_has_them_once(pack: Pack, source: Path) -> None:
    program = Program.as_compiled(pack)
    spans = program.spans
    ends = {span.file_offset: span.file_end for span in spans}
    assert sum(end - start for start, end in ends.items()) == pack.weights_path.stat().st_size
    all_bytes, own = sum(span.length for span in spans), pack.weights_path.stat().st_size
    assert all_bytes - own == shared_bytes(program) > 0.4 * all_bytes
    found = answers(pack.model_path, {"image": IMAGE})
    same(found, answers(source, {"image": IMAGE}), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("store", ["fp32", "int8", "lossless"])
def test_answers_are_those_of_weights_of_their_own(
    store: Store, source: Path, tmp_path: Path
) -> None:
    pack = compiled(source, tmp_path, replace(OPTIONS, store=store))
    expected = streamed(pack, {"image": IMAGE}, "pre")
    same(streamed(pack, {"image": IMAGE}, "2s", times=2), expected)
    same(streamed(pack, {"image": IMAGE}, "auto", times=2), expected)
    limit = 0.1 if store == "int8" else 1e-4
    same(expected, answers(source, {"image": IMAGE}), rtol=limit, atol=limit)
    assert SameSpans(Program.as_compiled(pack)).n_bytes(
        range(len(Program.as_compiled(pack).spans))
    ) < sum(span.length for span in Program.as_compiled(pack).spans)


def test_what_stays_in_memory_is_there_once(pack: Pack) -> None:
    program = Program.as_compiled(pack)
    plan = make_plan(program, ARCHITECTURES["pre"])
    assert plan.resident_bytes == pack.weights_path.stat().st_size
    known = SameSpans(program)
    assert all(plan.spans[span] == plan.spans[known.first(span)] for span in plan.resident)
    places = {(plan.spans[span], program.spans[span].length) for span in plan.resident}
    assert sum(length for _, length in places) == plan.resident_bytes


def test_plans_keep_all_that_are_the_same(pack: Pack) -> None:
    program, auto = Program.as_compiled(pack), ARCHITECTURES["auto"]
    smallest = SmallestPlans(program, auto).of()
    (everything,) = streams(program, smallest, pack.weights_path.stat().st_size)
    assert not everything.reads
    known = SameSpans(program)
    some = known.with_same([len(program.spans) // 3])
    assert len(some) == 2
    choice = Choice(1 << 18, 1 << 16, 1 << 16, resident=some)
    plan = make_plan(program, auto, choice=choice)
    assert plan.resident_bytes == known.n_bytes(plan.resident)


def test_a_partition_keeps_what_only_an_earlier_one_shared_with_it(pack: Pack) -> None:
    cuts = Cuts(Program.as_compiled(pack))
    for place in cuts.places:
        for part in cuts.parts([place]):
            own = {span.file_offset: span.length for span in part.spans if span.length}
            plan = make_plan(part, ARCHITECTURES["pre"])
            assert plan.resident_bytes >= sum(own.values())
            assert SameSpans(part).n_bytes(range(len(part.spans))) == sum(own.values())


@pytest.mark.skipif(host_target().block == 1, reason="no blocked layout here")
def test_chunks_of_a_layer_that_are_equal_can_be_joined(tmp_path: Path) -> None:
    """Two chunks of a pruned layer are nothing but zeros: once in the file, and both in memory."""
    weights = np.random.default_rng(1).standard_normal((256, 64, 3, 3), np.float32)
    weights[:64] = weights[128:192] = 0
    model = parsed(
        "g (float[1,64,5,5] x) => (float[1,256,5,5] y) { y = Conv<pads=[1,1,1,1]>(x, w) }",
        {"w": weights.shape},
    )
    model.graph.initializer[0].CopyFrom(numpy_helper.from_array(weights, "w"))
    pack = compiled(written(model, tmp_path / "pruned.onnx"), tmp_path, OPTIONS)
    spans = Program.as_compiled(pack).spans
    assert len({span.file_offset for span in spans}) < len(spans)
    everything = Choice(0, 1 << 30, 1 << 16, resident=tuple(range(len(spans))))
    plan = make_plan(Program.as_compiled(pack), ARCHITECTURES["2s"], choice=everything)
    (step,) = (step for step in plan.steps if isinstance(step, PreparedPiece) and step.n_spans > 1)
    assert step.span is not None
    own = range(step.span, step.span + step.n_spans)
    places = [plan.offset(plan.spans[span]) for span in own]
    assert places == list(accumulate((spans[span].length for span in own[:-1]), initial=places[0]))


def swapped(program: Program) -> tuple[int, int]:
    """Return a span that is the same as an earlier one, and an earlier one of another length."""
    number = next(number for number, span in enumerate(program.spans) if span.at is not None)
    length = program.spans[number].length
    return number, next(n for n, span in enumerate(program.spans) if span.length != length)


@pytest.mark.parametrize(
    ("at", "fault"),
    [("other", "is not the same"), (4096 * 3 + 1, "is not on 4096"), (1 << 40, "leaves a hole")],
)
def test_what_lies_elsewhere_is_one_that_was_before(
    at: int | str, fault: str, source: Path, tmp_path: Path
) -> None:
    folder = compile_onnx(source, tmp_path / "net", OPTIONS)
    number, other = swapped(Program.as_compiled(open_pack(folder)))
    place = open_pack(folder).manifest.spans[other].file_offset if at == "other" else at
    path = edit(folder, put("spans", number, "at", place))
    with refuses(PackError, path, f"spans.{number}", fault):
        open_pack(folder)


def unrolled(bias: str, width: int = 128) -> onnx.ModelProto:
    """A recurrent network of eight steps with one matrix, that adds ``bias`` in each."""
    steps = "".join(
        f"m{n} = MatMul(h{n}, w)\n a{n} = Add(m{n}, {bias})\n h{n + 1} = Tanh(a{n})\n"
        for n in range(8)
    )
    text = f"unrolled (float[1,{width}] x, float[1,{width}] h0) => (float y) {{ {steps} y = Add(h8, x) }}"
    return parsed(text, {"w": (width, width), "b": (width,)})


@pytest.mark.parametrize("bias", ["b", "x"])
def test_weights_of_an_unrolled_network_count_once(bias: str, tmp_path: Path) -> None:
    source = written(unrolled(bias), tmp_path / "m.onnx")
    pack = compiled(source, tmp_path, OPTIONS)
    matrix_bytes = 4 * 128 * 128
    assert matrix_bytes <= pack.manifest.weight_bytes <= matrix_bytes + 4 * 128
    assert sum(layer.weight_bytes for layer in pack.manifest.layers) >= 8 * matrix_bytes
    rng = np.random.default_rng(0)
    inputs = {name: rng.standard_normal((1, 128), np.float32) for name in ("x", "h0")}
    same(streamed(pack, inputs, "2s"), answers(source, inputs), rtol=1e-4, atol=1e-5)


def test_a_matrix_that_all_read_by_column_is_cut(tmp_path: Path) -> None:
    pack = compiled(written(unrolled("b"), tmp_path / "m.onnx"), tmp_path, OPTIONS)
    assert pack.manifest.largest_chunk_bytes <= CHUNK_BYTES < 4 * 128 * 128


def test_the_smallest_plan_keeps_what_its_ring_would_hold(tmp_path: Path) -> None:
    """Each layer would fill the ring with the same matrix."""
    pack = compiled(written(unrolled("x", 256), tmp_path / "m.onnx"), tmp_path, OPTIONS)
    program, auto = Program.as_compiled(pack), ARCHITECTURES["auto"]
    smallest = fit(program, auto, LEAST).plan
    assert isinstance(smallest, Plan)
    assert (smallest.ring_bytes, smallest.read_bytes) == (0, 0)
    assert smallest.total_bytes <= SmallestPlans(program, auto).of().total_bytes
