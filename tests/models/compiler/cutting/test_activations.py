"""Activations in the chunks of the dense layer before them: the same bits, in less memory."""

from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from tempfile import mkdtemp

import numpy as np
import onnx
import pytest
from onnx import numpy_helper
from onnx.parser import parse_model

from models.compiler import CompileOptions, compile_onnx
from models.compiler.passes.table import TARGETS
from models.packs.pack import Pack, open_pack
from pipeline.devices.cpu import CpuDevice
from pipeline.execution.opened import opened
from pipeline.fitting.fit import fit
from pipeline.fitting.wanted import LEAST
from pipeline.planning.make import make_plan
from pipeline.planning.plan import Choice
from pipeline.program.prepare import prepare
from pipeline.schedule.architectures import ARCHITECTURES
from tests.models.compiler.cutting.test_tables import drawn

TOKENS, WIDTH, HIDDEN = 160, 160, 512
SAMPLES = 1500
VALUE_BYTES = 4 * TOKENS * HIDDEN


def mlp(between: str = "b = Gelu(a)", tokens: int = TOKENS, outputs: str = "") -> onnx.ModelProto:
    model = parse_model(
        f"""<ir_version: 9, opset_import: ["" : 20]>
        mlp (float[1,{tokens},{WIDTH}] x) => (float[1,{tokens},{WIDTH}] y{outputs}) {{
            a = MatMul(x, up)
            {between}
            y = MatMul(b, down)
        }}"""
    )
    for name, array in {"up": drawn(WIDTH, HIDDEN), "down": drawn(HIDDEN, WIDTH)}.items():
        model.graph.initializer.append(numpy_helper.from_array(array / 16, name))
    return model


def compiled(model: onnx.ModelProto, folder: Path, *without: str) -> Pack:
    folder = Path(mkdtemp(dir=folder))
    onnx.save(model, folder / "mlp.onnx")
    options = CompileOptions(chunk_bytes=64 << 10, without=without)
    return open_pack(compile_onnx(folder / "mlp.onnx", folder / "mlp", options))


def fused(pack: Pack) -> list[str]:
    return [layer.operator for layer in pack.manifest.layers if "+" in layer.operator]


@pytest.fixture(scope="module")
def device() -> Iterator[CpuDevice]:
    with closing(CpuDevice(1)) as device:
        yield device


@pytest.fixture(scope="module")
def packs(tmp_path_factory: pytest.TempPathFactory) -> tuple[Pack, Pack]:
    """The network with the pass and without it."""
    folder = tmp_path_factory.mktemp("activations")
    return compiled(mlp(), folder), compiled(mlp(), folder, "fuse-activations")


def test_a_layer_computes_its_activation_in_chunks(
    packs: tuple[Pack, Pack], device: CpuDevice
) -> None:
    assert [fused(pack) for pack in packs] == [["Conv+Gelu"], []]
    inputs = {"x": np.random.default_rng(3).standard_normal((1, TOKENS, WIDTH), np.float32)}
    answers, sizes = [], []
    for pack in packs:
        program = prepare(pack, device)
        smallest = fit(program, ARCHITECTURES["auto"], LEAST).plan
        sizes.append(smallest.total_bytes)
        chunks = [
            make_plan(program, ARCHITECTURES["2s"], choice=Choice(chunk_bytes=size))
            for size in (1, 1 << 20)
        ]
        for plan in (smallest, *chunks, make_plan(program, ARCHITECTURES["pre"])):
            with opened(program, plan, device) as engine:
                answers.append(engine.run(inputs)[0]["y"])
    assert all(np.array_equal(answer, answers[0]) for answer in answers)
    assert sizes[1] - sizes[0] > VALUE_BYTES // 2


def test_scratch_is_the_input_of_the_activation(packs: tuple[Pack, Pack]) -> None:
    manifest = packs[0].manifest
    (layer,) = (layer for layer in manifest.layers if layer.operator == "Conv+Gelu")
    pieces = manifest.pieces[layer.first_piece : layer.end_piece]
    assert len(pieces) > 2
    assert all(piece.scratch_bytes >= piece.outputs[0].n_bytes for piece in pieces)
    assert sum(piece.outputs[0].n_bytes for piece in pieces) == VALUE_BYTES
    merged = [
        chunk.scratch_bytes
        for item in manifest.alternatives
        for chunk in item.joined
        if item.first_piece == layer.first_piece and chunk.n_chunks == len(pieces)
    ]
    assert merged
    assert all(n_bytes >= VALUE_BYTES for n_bytes in merged)


def sound() -> onnx.ModelProto:
    """Return a convolution of samples that makes more than its weights are, and an activation."""
    model = parse_model(
        f"""<ir_version: 9, opset_import: ["" : 20]>
        sound (float[1,16,{SAMPLES}] x) => (float[1,256,{SAMPLES}] y) {{
            a = Conv<pads = [1, 1]>(x, kernel)
            y = Gelu(a)
        }}"""
    )
    kernel = numpy_helper.from_array(drawn(256, 16, 3) / 16, "kernel")
    model.graph.initializer.append(kernel)
    return model


def test_chunks_of_a_convolution_of_samples_make_little(tmp_path: Path, device: CpuDevice) -> None:
    packs = [compiled(sound(), tmp_path), compiled(sound(), tmp_path, "fuse-activations")]
    assert [fused(pack) for pack in packs] == [["Conv+Gelu"], []]
    assert max(piece.scratch_bytes for piece in packs[0].manifest.pieces) < 4 * 192 * SAMPLES
    inputs = {"x": np.random.default_rng(3).standard_normal((1, 16, SAMPLES), np.float32)}
    answers = []
    for pack in packs:
        program = prepare(pack, device)
        with opened(program, make_plan(program, ARCHITECTURES["pre"]), device) as engine:
            answers.append(engine.run(inputs)[0]["y"])
    np.testing.assert_allclose(answers[0], answers[1], rtol=1e-5, atol=1e-6)


OTHERS: dict[str, Callable[[], onnx.ModelProto]] = {
    "it may lie over what it reads": lambda: mlp("b = Relu(a)"),
    "another reads what the layer makes": lambda: mlp("c = Gelu(a)\n b = Add(a, c)"),
    "it is an output": lambda: mlp(outputs=f", float[1,{TOKENS},{HIDDEN}] a"),
    "little": lambda: mlp(tokens=16),
    "groups of channels take less": lambda: mlp(tokens=4 * WIDTH),
}


@pytest.mark.parametrize("case", sorted(OTHERS))
def test_other_activations_stay_pieces(case: str, tmp_path: Path) -> None:
    assert not fused(compiled(OTHERS[case](), tmp_path))


def test_only_packs_for_cpus_have_the_pass() -> None:
    having = {name for name in TARGETS if "fuse-activations" in {s.name for s in TARGETS[name]}}
    assert having == {"blocked", "plain"}
