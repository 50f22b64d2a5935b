"""Inputs with a default, and old files that list every weight as an input."""

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from models.compiler import CompileOptions, compile_onnx
from models.errors import OnnxError
from models.packs.pack import Pack, open_pack
from pipeline.execution.errors import InputError
from tests.models.nets import answers, inputs_for, parsed, written
from tests.models.refusal import refuses
from tests.models.streamed import same, streamed


def scaled() -> onnx.ModelProto:
    """A product and a sum whose addend and threshold may be left out."""
    model = parsed(
        """d (float[32] k, float[1,64] x, float t) => (float[1,32] y) {
            z = Gemm<transB=1>(x, w)
            s = Add(z, k)
            y = ThresholdedRelu<alpha=0.1>(s)
        }""",
        {"w": (32, 64), "k": (32,)},
    )
    model.graph.initializer.append(numpy_helper.from_array(np.array(0.5, np.float32), "t"))
    model.graph.node[2].CopyFrom(helper.make_node("Max", ["s", "t"], ["y"]))
    return model


def compiled(model: onnx.ModelProto, folder: Path) -> tuple[Path, Pack, list[str]]:
    source, warnings = written(model, folder / "m.onnx"), list[str]()
    options = CompileOptions(warn=warnings.append)
    return source, open_pack(compile_onnx(source, folder / "m", options)), warnings


@pytest.mark.parametrize("given", [(), ("k",), ("t",), ("k", "t")])
def test_defaults_may_be_left_out_or_given(given: tuple[str, ...], tmp_path: Path) -> None:
    source, pack, warnings = compiled(scaled(), tmp_path)
    assert warnings == []
    assert [port.name for port in pack.manifest.inputs] == ["x", "k", "t"]
    assert [port.name for port in pack.manifest.required_inputs] == ["x"]
    all_inputs = inputs_for({"x": (1, 64), "k": (32,), "t": ()})
    all_inputs["t"] = np.asarray(all_inputs["t"], np.float32)
    inputs = {name: all_inputs[name] for name in ("x", *given)}
    same(streamed(pack, inputs, times=2), answers(source, inputs), 1e-5, 1e-5)


def test_a_default_has_one_shape(tmp_path: Path) -> None:
    source, pack, _ = compiled(scaled(), tmp_path)
    with pytest.raises(InputError, match="'k' is float32"):
        streamed(pack, inputs_for({"x": (1, 64), "k": (1, 32)}))
    with pytest.raises(InputError, match="'x' is missing"):
        streamed(pack, inputs_for({"k": (32,)}))
    with refuses(OnnxError, source, "'k' has a default of shape [32], not [8]"):
        compile_onnx(source, tmp_path / "n", CompileOptions(shapes={"k": (8,)}))


@pytest.mark.parametrize("version", [3, 9])
def test_weights_that_are_all_listed_are_constants(version: int, tmp_path: Path) -> None:
    """Before IR version 4 they had to be; exporters that kept the habit are taken at their old word."""
    model = parsed(
        "l (float[1,64] x) => (float[1,32] y) { y = Gemm<transB=1>(x, w, b) }",
        {"w": (32, 64), "b": (32,)},
    )
    model.ir_version = version
    for tensor in model.graph.initializer:
        port = helper.make_tensor_value_info(tensor.name, TensorProto.FLOAT, tensor.dims)
        model.graph.input.append(port)
    source, pack, warnings = compiled(model, tmp_path)
    assert [port.name for port in pack.manifest.inputs] == ["x"]
    assert len(warnings) == (version >= 4)  # where ONNX Runtime would let callers replace them
    assert all("'w', 'b'" in line and "no request can name" in line for line in warnings)
    inputs = inputs_for({"x": (1, 64)})
    same(streamed(pack, inputs), answers(source, inputs), 1e-5, 1e-5)


def listing_all(constant: bool = False) -> onnx.ModelProto:
    """Return a network that lists every initializer; ``constant``: it has a Constant node, too."""
    model = parsed(
        """l (float[1,4,6,6] x) => (float y) {
            c = Conv(x, w, b)
            p = PRelu(c, slope)
            t = Transpose<perm = [1, 0]>(m)
            f = Flatten(p)
            z = MatMul(f, t)
            y = Add(z, one)
        }""",
        {"w": (2, 4, 3, 3), "b": (2,), "slope": (2, 1, 1), "m": (3, 32)},
    )
    one = numpy_helper.from_array(np.ones((1, 3), np.float32), "one")
    if constant:
        model.graph.node.insert(0, helper.make_node("Constant", [], ["one"], value=one))
    else:
        model.graph.initializer.append(one)
    for tensor in model.graph.initializer:
        port = helper.make_tensor_value_info(tensor.name, TensorProto.FLOAT, tensor.dims)
        model.graph.input.append(port)
    model.ir_version = 9
    return model


@pytest.mark.parametrize("constant", [False, True])
def test_weights_are_no_inputs_whatever_is_beside_them(constant: bool, tmp_path: Path) -> None:
    source, pack, (warning,) = compiled(listing_all(constant), tmp_path)
    assert [port.name for port in pack.manifest.inputs] == ["x"]
    assert "no request can name it" in warning
    inputs = inputs_for({"x": (1, 4, 6, 6)})
    same(streamed(pack, inputs), answers(source, inputs), 1e-5, 1e-5)


@pytest.mark.parametrize("name", ["w", "b", "slope", "m"])
def test_each_weight_tells_that_all_are_listed_by_habit(name: str, tmp_path: Path) -> None:
    """An optimiser adds initializers and lists none of them: not all are listed then."""
    model = listing_all()
    kept = [value for value in model.graph.input if value.name in ("x", name, "one")]
    del model.graph.input[:]
    model.graph.input.extend(kept)
    _, pack, _ = compiled(model, tmp_path)
    assert [port.name for port in pack.manifest.inputs] == ["x"]


def test_a_weight_that_is_asked_for_stays_an_input(tmp_path: Path) -> None:
    source, warnings = written(listing_all(), tmp_path / "m.onnx"), list[str]()
    options = CompileOptions(warn=warnings.append, keep_inputs=("w", "one"))
    pack = open_pack(compile_onnx(source, tmp_path / "m", options))
    assert [port.name for port in pack.manifest.inputs] == ["x", "w", "one"]
    assert all("'w'" not in line for line in warnings)
    inputs = inputs_for({"x": (1, 4, 6, 6), "w": (2, 4, 3, 3)})
    same(streamed(pack, inputs), answers(source, inputs), 1e-5, 1e-5)


@pytest.mark.parametrize(
    ("name", "words"), [("x", "no input with a value"), ("k", "at most 64 KiB")]
)
def test_what_cannot_be_a_default_is_refused(name: str, words: str, tmp_path: Path) -> None:
    model = parsed(
        "l (float[1,200] x, float[200,200] k) => (float y) { y = Add(x, k) }", {"k": (200, 200)}
    )
    source = written(model, tmp_path / "m.onnx")
    with refuses(OnnxError, source, repr(name), words):
        compile_onnx(source, tmp_path / "m", CompileOptions(keep_inputs=(name,)))


def test_large_defaults_are_weights(tmp_path: Path) -> None:
    model = parsed(
        "l (float[1,200] x, float[200,200] k) => (float y) { z = Add(x, k)\n y = Mul(z, s) }",
        {"k": (200, 200), "s": (1,)},
    )
    _, pack, (warning,) = compiled(model, tmp_path)
    assert "'k': listed as input" in warning
    assert [port.name for port in pack.manifest.inputs] == ["x"]


@pytest.mark.parametrize(
    ("dims", "options", "words"),
    [
        ("2,8", CompileOptions(batch=4), ("--batch 4", "'x' is [2, 8]", "--shape NAME=4,...")),
        ("n,8", CompileOptions(batch=4, shapes={"x": (2, 8)}), ("--batch 4", "'x' by --shape")),
    ],
)
def test_a_batch_that_changes_nothing_is_refused(
    dims: str, options: CompileOptions, words: tuple[str, ...], tmp_path: Path
) -> None:
    model = parsed(f"b (float[{dims}] x) => (float y) {{ y = Relu(x) }}")
    source = written(model, tmp_path / "m.onnx")
    with refuses(OnnxError, source, *words):
        compile_onnx(source, tmp_path / "m", options)


def test_a_batch_that_is_already_so_is_taken(tmp_path: Path) -> None:
    model = parsed("b (float[4,8] x) => (float y) { y = Relu(x) }")
    source = written(model, tmp_path / "m.onnx")
    assert compile_onnx(source, tmp_path / "m", CompileOptions(batch=4)).exists()


@pytest.mark.parametrize(("version", "opset"), [(14, 17), (13, 28), (14, 28)])
def test_newer_versions_are_taken_where_nothing_is_newer(
    version: int, opset: int, tmp_path: Path
) -> None:
    model = parsed("v (float[1,8] x) => (float y) { y = Relu(x) }")
    model.ir_version, model.opset_import[0].version = version, opset
    source = written(model, tmp_path / "m.onnx")
    inputs = inputs_for({"x": (1, 8)})
    pack = open_pack(compile_onnx(source, tmp_path / "m"))
    same(streamed(pack, inputs), {"y": np.maximum(inputs["x"], 0)})


def test_an_operator_that_is_newer_keeps_its_version(tmp_path: Path) -> None:
    model = parsed("v (float[1,8] x) => (float y) { y = Relu(x) }")
    model.ir_version, model.opset_import[0].version = 14, 28
    newest = [
        schema.name
        for schema in onnx.defs.get_all_schemas()
        if schema.domain == "" and schema.since_version > 26 and not schema.deprecated
    ]
    if not newest:
        pytest.skip("this onnx has no operator that ONNX Runtime does not know")
    model.graph.node[0].op_type = newest[0]
    source = written(model, tmp_path / "m.onnx")
    with pytest.raises(OnnxError, match=f"{newest[0]}|28"):
        compile_onnx(source, tmp_path / "m")
