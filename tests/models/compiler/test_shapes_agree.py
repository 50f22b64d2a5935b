"""Models whose shapes contradict each other can only fail, or answer too much: no pack is made of them."""

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import numpy_helper

from models.compiler import CompileOptions, compile_onnx
from models.errors import CompileError, OnnxError, PackError
from tests.examples import over
from tests.models.nets import answers, gemm, inputs_for, parsed, written
from tests.models.refusal import refuses
from tests.models.streamed import compiled, same, streamed


def integers(model: onnx.ModelProto, **constants: list[int]) -> onnx.ModelProto:
    for name, values in constants.items():
        array = np.array(values, np.int64)
        model.graph.initializer.append(numpy_helper.from_array(array, name))
    return model


def reshaped(shape: list[int]) -> onnx.ModelProto:
    text = "r (float[n,32] x) => (float[a,b,c] y) { z = Relu(x)\n y = Reshape(z, s) }"
    return integers(parsed(text), s=shape)


def norm(name: str) -> onnx.ModelProto:
    """A norm whose parameter ``name`` has a number too few; from opset 14 on ONNX's inference sees it."""
    text = (
        "b (float[n,16,h,8] x) => (float y) { z = Relu(x)\n y = BatchNormalization(z, s, b, m, v) }"
    )
    model = parsed(text, {**dict.fromkeys("sbmv", (16,)), name: (15,)})
    model.opset_import[0].version = 13
    return model


def head() -> onnx.ModelProto:
    """A detector's: the convolution works at any batch and size, the reshape at one."""
    model = parsed(
        """head (float[n,8,h,w] x) => (float[a,b,c] y) {
            z = Conv(x, w)
            y = Reshape(z, s)
        }""",
        {"w": (18, 8, 1, 1)},
    )
    return integers(model, s=[1, 18, 16])


CONV = "c (float[n,3,h,8] x) => (float y) { y = Conv(x, w) }"
BIASED = "c (float[n,16,h,8] x) => (float y) { z = Relu(x)\n y = OP(z, w, b) }"
OF_IMAGES = (
    "i (float[n,16,h,8] x) => (float y) { z = Relu(x)\n y = InstanceNormalization(z, s, b) }"
)
GEMM = "g (float[1,32] x) => (float y) { y = Gemm(x, w, b) }"


@over(
    "model, shape, words",
    [
        (reshaped([1, 2, 8]), (1, 32), ("'y' (Reshape)", "32 values", "[1, 2, 8]", "16")),
        (reshaped([1, 2, 64]), (1, 32), ("'y' (Reshape)", "32 values", "128")),
        (head(), (2, 8, 4, 4), ("'y' (Reshape)", "576 values of shape [2, 18, 4, 4]", "288")),
        (head(), (1, 8, 2, 2), ("'y' (Reshape)", "72 values", "[1, 18, 16]")),
        (parsed(CONV, {"w": (4, 5, 3, 3)}), (1, 3, 8, 8), ("'y' (Conv)", "3 channels", "take 5")),
        (parsed(CONV, {"w": (4, 3, 3, 3)}), (1, 3, 0, 8), ("(Conv)", "[1, 3, 0, 8] is empty")),
        (parsed(CONV, {"w": (4, 3, 9, 9)}), (1, 3, 8, 8), ("(Conv)", "is empty")),
        *(
            (
                parsed(BIASED.replace("OP", operator), {"w": (16, 16, 3, 3), "b": bias}),
                *((1, 16, 8, 8), (f"({operator})", f"bias {list(bias)}", "16 filters")),
            )
            for operator in ("Conv", "ConvTranspose")
            for bias in ((15,), (17,), (1,), (1, 16))
        ),
        *((norm(name), (1, 16, 8, 8), (f"{name!r} [15]", "16 channels")) for name in "sbmv"),
        (parsed(OF_IMAGES, {"s": (8,), "b": (16,)}), (1, 16, 8, 8), ("'s' [8]", "16 channels")),
        (parsed(GEMM, {"w": (32, 5), "b": (4,)}), (1, 32), ("'y' (Gemm)", "bias [4]", "[1, 5]")),
    ],
)
def test_contradictions_are_refused_by_the_nodes_name(
    model: onnx.ModelProto, shape: tuple[int, ...], words: tuple[str, ...], tmp_path: Path
) -> None:
    source = written(model, tmp_path / "m.onnx")
    with refuses(CompileError, source, *words):
        compile_onnx(source, tmp_path / "r" / "m", CompileOptions(shapes={"x": shape}))
    assert not (tmp_path / "r" / "m").exists()
    with pytest.raises(Exception, match="ONNXRuntimeError"):
        answers(source, inputs_for({"x": shape}), optimise=True)


def test_a_pool_whose_shape_onnx_runtime_gets_wrong_is_refused(tmp_path: Path) -> None:
    """It would make no row where its shape says one, and a convolution behind it ends the process."""
    node = '{ y = MaxPool<auto_pad="SAME_LOWER", kernel_shape=[2,2], dilations=[3,1]>(x) }'
    source = written(parsed(f"p (float[1,8,1,7] x) => (float y) {node}"), tmp_path / "m.onnx")
    with refuses(CompileError, source, "'y' (MaxPool)", "auto_pad SAME_LOWER", "dilations [3, 1]"):
        compile_onnx(source, tmp_path / "r" / "m")


def test_a_matrix_of_another_width_is_refused(tmp_path: Path) -> None:
    source = written(parsed(GEMM, {"w": (31, 5), "b": (5,)}), tmp_path / "m.onnx")
    with refuses(OnnxError, source, "Gemm", "31 and 32"):
        compile_onnx(source, tmp_path / "r" / "m")


@pytest.mark.parametrize("shape", [[1, 2, 16], [4, -1, 2], [0, 4, 8], [-1, 1, 1]])
def test_reshapes_that_agree_answer(shape: list[int], tmp_path: Path) -> None:
    source = written(reshaped(shape), tmp_path / "m.onnx")
    inputs = inputs_for({"x": (1, 32)})
    same(streamed(compiled(source, tmp_path), inputs), answers(source, inputs))


def test_a_contradiction_that_is_never_run_is_none(tmp_path: Path) -> None:
    """Only the shape of what cannot be reshaped is read, and ONNX Runtime folds that."""
    model = parsed(
        """f (float[1,32] x) => (float[n] y) {
            z = Reshape(x, s)
            n = Shape(z)
            y = Cast<to=1>(n)
        }"""
    )
    source = written(integers(model, s=[1, 2, 8]), tmp_path / "m.onnx")
    inputs = inputs_for({"x": (1, 32)})
    same(streamed(compiled(source, tmp_path), inputs), answers(source, inputs, optimise=True))


def test_an_empty_batch_is_an_answer_where_onnx_runtime_has_one(tmp_path: Path) -> None:
    source = written(parsed(CONV, {"w": (4, 3, 3, 3)}), tmp_path / "m.onnx")
    pack = compiled(source, tmp_path, CompileOptions(shapes={"x": (0, 3, 8, 8)}))
    inputs = inputs_for({"x": (0, 3, 8, 8)})
    same(streamed(pack, inputs), answers(source, inputs, optimise=True))


def test_a_pack_that_its_reader_refuses_never_appears(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = written(gemm(), tmp_path / "m.onnx")
    before = compile_onnx(source, tmp_path / "r" / "m")
    manifest = (before / "manifest.json").read_bytes()

    def refuse(folder: Path) -> None:
        assert folder.name == "1"
        raise PackError(f"{folder / 'manifest.json'}: values.19: does not fit in its parent")

    monkeypatch.setattr("models.compiler.compile.read_pack", refuse)
    with refuses(CompileError, before / "manifest.json", "values.19", "was not written"):
        compile_onnx(source, tmp_path / "r" / "m", CompileOptions(force=True))
    assert (before / "manifest.json").read_bytes() == manifest
    assert list((tmp_path / "r" / "m").iterdir()) == [before]
