"""Models that ONNX allows and that cannot be compiled; options that do not fit the model."""

import os
from collections.abc import Callable
from pathlib import Path

import onnx
import pytest

from models.compiler import CompileOptions, compile_onnx
from models.errors import CompileError, OnnxError
from models.images.preprocess import Preprocess
from models.packs.pack import open_pack
from tests.examples import over
from tests.models.nets import dynamic, gemm, one_layer, parsed, two_by_two, written
from tests.models.refusal import refuses


def two_steps(first: str, output: str) -> onnx.ModelProto:
    return parsed(f"steps (float[1,4] x) => ({output} y) {{ {first} }}")


@over(
    "make, error, reason",
    [
        (lambda: two_steps("y = Frobnicate(x)", "float[1,4]"), OnnxError, "Frobnicate"),
        (lambda: two_steps("y = Relu(x, x)", "float[1,4]"), OnnxError, "Relu"),
        (lambda: two_steps("y = Conv(x)", "float[1,4]"), OnnxError, "Conv"),
        (lambda: two_steps("y = Mish()", "float[1,4]"), OnnxError, "Mish"),
        (lambda: two_steps('y = Constant<value_float="1">()', "float"), OnnxError, "value_float"),
        (lambda: two_steps("y = Relu(nothing)", "float[1,4]"), OnnxError, "nothing"),
        (lambda: two_steps("y = Relu(x)", "double[1,4]"), OnnxError, "y"),
        (lambda: two_steps("y = Flatten(x)\ny = Relu(x)", "float[1,4]"), OnnxError, "y"),
    ],
)
def test_models_that_onnx_runtime_refuses_are_refused(
    make: Callable[[], onnx.ModelProto], error: type[Exception], reason: str, tmp_path: Path
) -> None:
    source = written(make(), tmp_path / "m.onnx")
    with refuses(error, source, reason):
        compile_onnx(source, tmp_path / "repository" / "m")
    assert not (tmp_path / "repository" / "m").exists()


def named(nodes: str, output: str, opset: int) -> onnx.ModelProto:
    model = parsed(f"image_net (float[1,3,8,8] image) => ({output} y) {{ {nodes} }}")
    model.opset_import[0].version = opset
    model.opset_import.add(domain="mmdeploy", version=1)
    model.graph.node[-1].name = "last"
    return model


FLOATS = "float[1,3,8,8]"


@over(
    "model, error, fault, hint",
    [
        (("y = FancyPool(image)", FLOATS, 17), OnnxError, "ONNX has no operator", "without it"),
        (("y = mmdeploy.Deform(image)", FLOATS, 17), OnnxError, "mmdeploy:Deform", "without it"),
        (
            ("y = Upsample<width_scale=2.0, height_scale=2.0>(image)", "float[1,3,16,16]", 1),
            *(OnnxError, "(Upsample 1): it has no kernel", "convert the file"),
        ),
        (
            ("bytes = Cast<to=5>(image) y = ConvInteger(bytes, bytes)", "int32[1,1,1,1]", 17),
            *(OnnxError, "its input 'bytes' is int16", "another type"),
        ),
        (("y = Cast<to=16>(image)", "bfloat16[1,3,8,8]", 17), CompileError, "bfloat16", "another"),
        (("y = SplitToSequence(image)", "seq(float)", 17), CompileError, "seq(tensor", "another"),
    ],
)
def test_what_is_refused_names_the_node_of_the_file_and_a_hint(
    model: tuple[str, str, int], error: type[Exception], fault: str, hint: str, tmp_path: Path
) -> None:
    source = written(named(*model), tmp_path / "m.onnx")
    with refuses(error, source, "node 'last' (", fault, hint):
        compile_onnx(source, tmp_path / "repository" / "m")


def scores(mask: str, attributes: str) -> onnx.ModelProto:
    """Return an Attention that masks, and whose scores are an output."""
    model = parsed(
        f"""scores (float[1,1,3,4] q, {mask}[3,3] m) => (float y, float s) {{
            y, a, b, s = Attention<{attributes}>(q, q, q, m)
        }}"""
    )
    model.opset_import[0].version = 24
    for unread in (1, 2):
        model.graph.node[0].output[unread] = ""
    return model


@over("mask, causal", [("bool", 0), ("float", 1)])
def test_scores_that_onnx_runtime_masks_otherwise_are_refused(
    mask: str, causal: int, tmp_path: Path
) -> None:
    model = scores(mask, f"qk_matmul_output_mode=2, is_causal={causal}")
    source = written(model, tmp_path / "m.onnx")
    with refuses(CompileError, source, "'y' (Attention)", "not -inf", "modes 0, 1 and 3"):
        compile_onnx(source, tmp_path / "repository" / "m")


@pytest.mark.parametrize(("mask", "mode"), [("bool", 1), ("float", 2)])
def test_other_scores_are_not_refused(mask: str, mode: int, tmp_path: Path) -> None:
    source = written(scores(mask, f"qk_matmul_output_mode={mode}"), tmp_path / "m.onnx")
    compile_onnx(source, tmp_path / "repository" / "m")


def test_operator_of_an_unknown_domain_is_refused(tmp_path: Path) -> None:
    model = one_layer()
    model.graph.node[0].domain = "com.example"
    model.opset_import.add(domain="com.example", version=1)
    source = written(model, tmp_path / "m.onnx")
    with refuses(OnnxError, source, "com.example"):
        compile_onnx(source, tmp_path / "repository" / "m")


@pytest.mark.parametrize("version", [0, 4711])
def test_unknown_opset_is_refused(version: int, tmp_path: Path) -> None:
    model = one_layer()
    model.opset_import[0].version = version
    source = written(model, tmp_path / "m.onnx")
    with refuses(OnnxError, source):
        compile_onnx(source, tmp_path / "repository" / "m")


def test_refusals_print_nothing(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    source = written(two_steps("y = Frobnicate(x)", "float[1,4]"), tmp_path / "m.onnx")
    with refuses(OnnxError, source):
        compile_onnx(source, tmp_path / "repository" / "m")
    assert capfd.readouterr() == ("", "")


@over("name", [".hidden", "-x", "a b", "a\nb", "ä", "x" * 101, "a:b", ".compiling-1-1"])
def test_names_that_are_no_model_names_are_refused(name: str, tmp_path: Path) -> None:
    source = written(one_layer(), tmp_path / "m.onnx")
    with refuses(CompileError, "is not a model name"):
        compile_onnx(source, tmp_path / "repository" / name)
    assert not (tmp_path / "repository").exists()


def test_a_version_is_no_model_of_its_own(tmp_path: Path) -> None:
    source = written(one_layer(), tmp_path / "m.onnx")
    compile_onnx(source, tmp_path / "m")
    with refuses(CompileError, "--version 2 makes a version of it"):
        compile_onnx(source, tmp_path / "m" / "2")
    assert compile_onnx(source, tmp_path / "7") == tmp_path / "7" / "1"  # nothing else is there


@pytest.mark.parametrize("version", [0, -1])
def test_versions_that_are_no_positive_integers_are_refused(version: int, tmp_path: Path) -> None:
    source = written(one_layer(), tmp_path / "m.onnx")
    with refuses(CompileError, tmp_path / "repository" / "m", f"version {version}"):
        compile_onnx(source, tmp_path / "repository" / "m", CompileOptions(version=version))


@pytest.mark.parametrize("chunk_bytes", [0, -1])
def test_chunk_limit_without_a_meaning_is_refused(chunk_bytes: int, tmp_path: Path) -> None:
    source = written(gemm(), tmp_path / "m.onnx")
    with refuses(CompileError, tmp_path / "repository" / "m", f"chunk of {chunk_bytes} bytes"):
        compile_onnx(source, tmp_path / "repository" / "m", CompileOptions(chunk_bytes=chunk_bytes))


def test_smallest_chunk_limit_works(tmp_path: Path) -> None:
    source = written(gemm(), tmp_path / "m.onnx")
    pack = open_pack(compile_onnx(source, tmp_path / "m", CompileOptions(chunk_bytes=1)))
    assert pack.manifest.largest_chunk_bytes == 4096


def test_existing_version_is_replaced_only_when_forced(tmp_path: Path) -> None:
    source = written(gemm(), tmp_path / "m.onnx")
    pack = compile_onnx(source, tmp_path / "repository" / "m")
    before = (pack / "manifest.json").read_bytes()
    with refuses(CompileError, pack, "--force", "--version"):
        compile_onnx(source, tmp_path / "repository" / "m", CompileOptions(chunk_bytes=4096))
    assert (pack / "manifest.json").read_bytes() == before
    options = CompileOptions(chunk_bytes=4096, force=True)
    assert compile_onnx(source, tmp_path / "repository" / "m", options) == pack
    assert len(open_pack(pack).manifest.spans) > 2
    second = compile_onnx(source, tmp_path / "repository" / "m", CompileOptions(version=2))
    assert sorted(pack.parent.iterdir()) == [pack, second]


@over("count", [1, 127, 129])
def test_wrong_number_of_labels_is_refused(count: int, tmp_path: Path) -> None:
    source = written(gemm(), tmp_path / "m.onnx")
    options = CompileOptions(labels=tuple(f"class {i}" for i in range(count)))
    with refuses(CompileError, source, f"{count} labels", "'y' has shape [1, 128]"):
        compile_onnx(source, tmp_path / "repository" / "m", options)
    assert not (tmp_path / "repository" / "m").exists()


def test_labels_for_something_that_is_no_vector_are_refused(tmp_path: Path) -> None:
    source = written(two_by_two(), tmp_path / "m.onnx")
    with refuses(CompileError, source, "2 labels"):
        compile_onnx(source, tmp_path / "repository" / "m", CompileOptions(labels=("a", "b")))


def test_labels_and_scores_reach_the_pack(tmp_path: Path) -> None:
    labels = tuple(f"class {i}" for i in range(128))
    source = written(gemm(), tmp_path / "m.onnx")
    pack = open_pack(compile_onnx(source, tmp_path / "a", CompileOptions(labels=labels)))
    assert pack.manifest.classification is not None
    assert pack.manifest.classification.labels == labels
    assert pack.manifest.classification.scores == "probabilities"  # it ends in a softmax
    pack = open_pack(compile_onnx(source, tmp_path / "b", CompileOptions(scores="logits")))
    assert pack.manifest.classification is not None
    assert pack.manifest.classification.scores == "logits"
    assert pack.manifest.classification.labels == ()


@over("last", ["Flatten(s)", "Transpose<perm=[0,3,1,2]>(s)", "Squeeze(s, axes)"])
def test_scores_of_a_softmax_are_probabilities_in_any_shape(last: str, tmp_path: Path) -> None:
    model = parsed(
        f"""m (float[1,1,1,9] x) => (float y) <int64[2] axes = {{1, 2}}> {{
            s = Softmax(x)
            y = {last}
        }}"""
    )
    source = written(model, tmp_path / "m.onnx")
    pack = open_pack(compile_onnx(source, tmp_path / "m", CompileOptions(force=True)))
    assert pack.manifest.classification is not None
    assert pack.manifest.classification.scores == "probabilities"


def test_output_that_is_an_input_has_no_maker(tmp_path: Path) -> None:
    """A vector of scores that no node makes: nothing says whether they are probabilities."""
    model = two_steps("y = Relu(x)", "float[1,4]")
    model.graph.output[0].name = "x"
    source = written(model, tmp_path / "m.onnx")
    pack = open_pack(compile_onnx(source, tmp_path / "m"))
    assert pack.manifest.classification is not None
    assert pack.manifest.classification.scores == "logits"


@pytest.mark.parametrize("size", [(8, 8), (5, 4)])
def test_preprocessing_of_another_shape_is_refused(size: tuple[int, int], tmp_path: Path) -> None:
    source = written(
        parsed("i (float[1,3,5,4] x) => (float y) { y = Relu(x) }"), tmp_path / "m.onnx"
    )
    options = CompileOptions(preprocess=Preprocess(size=size))
    made = f"float32[1, 3, {size[1]}, {size[0]}]"
    with refuses(CompileError, source, made, "'x' is float32[1, 3, 5, 4]"):
        compile_onnx(source, tmp_path / "m", options)
    options = CompileOptions(preprocess=Preprocess(size=(4, 5)))
    assert open_pack(compile_onnx(source, tmp_path / "m", options)).manifest.preprocess is not None


def test_preprocessing_in_the_other_layout_is_refused_with_the_setting_that_does(
    tmp_path: Path,
) -> None:
    source = written(
        parsed("i (float[1,5,4,3] x) => (float y) { y = Relu(x) }"), tmp_path / "m.onnx"
    )
    options = CompileOptions(preprocess=Preprocess(size=(4, 5)))
    with refuses(CompileError, source, "'x' is float32[1, 5, 4, 3]", 'layout = "NHWC" makes'):
        compile_onnx(source, tmp_path / "m", options)
    options = CompileOptions(preprocess=Preprocess(size=(4, 5), layout="NHWC"))
    assert open_pack(compile_onnx(source, tmp_path / "m", options)).manifest.preprocess is not None


def test_preprocessing_for_an_input_of_another_type_is_refused(tmp_path: Path) -> None:
    model = parsed("i (uint8[1,3,5,4] x) => (float y) { y = Cast<to=1>(x) }")
    source = written(model, tmp_path / "m.onnx")
    with refuses(CompileError, source, "'x' is uint8[1, 3, 5, 4]"):
        compile_onnx(source, tmp_path / "m", CompileOptions(preprocess=Preprocess(size=(4, 5))))


def test_preprocessing_needs_one_input(tmp_path: Path) -> None:
    source = written(two_by_two(), tmp_path / "m.onnx")
    options = CompileOptions(preprocess=Preprocess(size=(6, 6)))
    with refuses(CompileError, source, "preprocessing"):
        compile_onnx(source, tmp_path / "m", options)


def test_model_without_outputs_is_refused(tmp_path: Path) -> None:
    model = one_layer()
    del model.graph.output[:]
    source = written(model, tmp_path / "m.onnx")
    with refuses(OnnxError, source, "no outputs"):
        compile_onnx(source, tmp_path / "m")


def test_model_without_inputs_is_refused_or_opens(tmp_path: Path) -> None:
    model = parsed("none () => (float[2] y) { y = RandomNormal<shape=[2]>() }")
    source = written(model, tmp_path / "m.onnx")
    options = CompileOptions(preprocess=Preprocess(size=(6, 6)))
    with refuses(CompileError, source, "preprocessing"):
        compile_onnx(source, tmp_path / "m", options)
    assert open_pack(compile_onnx(source, tmp_path / "m")).manifest.inputs == ()


def test_batch_and_shape_reach_the_pack(tmp_path: Path) -> None:
    source = written(dynamic("n,3,height,4"), tmp_path / "m.onnx")
    options = CompileOptions(shapes={"x": (2, 3, 6, 4)})
    pack = open_pack(compile_onnx(source, tmp_path / "a", options))
    assert [port.shape for port in pack.manifest.outputs] == [(2, 3, 6, 4)]
    source = written(dynamic("n,3"), tmp_path / "m.onnx")
    pack = open_pack(compile_onnx(source, tmp_path / "b", CompileOptions(batch=5)))
    assert [port.shape for port in pack.manifest.inputs] == [(5, 3)]


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_folder_that_may_not_be_written_is_named(tmp_path: Path) -> None:
    source = written(one_layer(), tmp_path / "m.onnx")
    repository = tmp_path / "repository"
    repository.mkdir(mode=0o500)
    with refuses(CompileError, repository / "m", "Permission denied"):
        compile_onnx(source, repository / "m")


def test_destination_below_a_file_is_named(tmp_path: Path) -> None:
    source = written(one_layer(), tmp_path / "m.onnx")
    (tmp_path / "repository").write_text("not a folder")
    with refuses(CompileError, tmp_path / "repository", "directory"):
        compile_onnx(source, tmp_path / "repository" / "m")
