"""Networks of floats that are compiled to 8-bit integers, calibrated on pictures."""

from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import numpy_helper
from PIL import Image

from models.compiler import CompileOptions, compile_onnx
from models.datasets.samples import SampleError
from models.errors import CompileError
from models.images.preprocess import Preprocess
from models.packs.pack import Pack, open_pack
from models.packs.target import named_target
from models.runtime.sessions import open_resident
from pipeline.checking.checker import checker
from tests.models.compiler.optimising.test_quantised import qdq
from tests.models.nets import parsed, written
from tests.models.streamed import streamed

RECIPE = Preprocess(size=(16, 16), mean=(128.0,), std=(64.0,))
EMPTY = 3


def _network() -> onnx.ModelProto:
    """Two convolutions and a layer of scores; a channel of the first has weights of zero."""
    model = parsed(
        """g (float[1,3,16,16] x) => (float[1,5] y) {
            a = Conv<pads=[1,1,1,1]>(x, wa)
            b = Relu(a)
            c = Conv<pads=[1,1,1,1]>(b, wb)
            d = GlobalAveragePool(c)
            e = Flatten(d)
            y = Gemm<transB=1>(e, wc)
        }""",
        {"wa": (16, 3, 3, 3), "wb": (64, 16, 3, 3), "wc": (5, 64)},
    )
    array = numpy_helper.to_array(model.graph.initializer[0]).copy()
    array[EMPTY] = 0
    model.graph.initializer[0].CopyFrom(numpy_helper.from_array(array, "wa"))
    return model


def _pictures() -> Iterator[Image.Image]:
    """Pictures of several sizes: preprocessing makes them fit."""
    generator = np.random.default_rng(0)
    for width in (16, 40, 9):
        yield Image.fromarray(generator.integers(0, 256, (24, width, 3)).astype(np.uint8))


def _compiled(
    model: onnx.ModelProto,
    folder: Path,
    pictures: Callable[[], Iterator[Image.Image]] = _pictures,
    recipe: Preprocess = RECIPE,
) -> Pack:
    source = written(model, folder / "m.onnx")
    accept = checker(
        source, named_target("cpu"), lambda _text: None, lambda *_: None, depth="quick"
    )
    options = CompileOptions(preprocess=recipe, calibrate=pictures, accept=accept)
    return open_pack(compile_onnx(source, folder / "packs" / "m", options))


def _detector() -> onnx.ModelProto:
    """A convolution whose answers become places of up to a thousand pixels, and probabilities."""
    return parsed(
        """g (float[1,3,16,16] x) => (float[1,4,16,16] y) {
            a = Conv<pads=[1,1,1,1]>(x, wa)
            places, scores = Split<axis=1>(a)
            pixels = Mul(places, large)
            probable = Sigmoid(scores)
            y = Concat<axis=1>(pixels, probable)
        }""",
        {"wa": (4, 3, 3, 3), "large": (1, 2, 16, 16)},
    )


def test_places_and_probabilities_have_no_scale_in_common(tmp_path: Path) -> None:
    model = _detector()
    large = next(item for item in model.graph.initializer if item.name == "large")
    large.CopyFrom(numpy_helper.from_array(np.full((1, 2, 16, 16), 1000, np.float32), "large"))
    pack = _compiled(model, tmp_path)
    whole = (value for value in pack.manifest.values if value.shape == (1, 4, 16, 16))
    assert {value.name for value in whole if value.dtype == "float32"} == {"y"}  # parts are floats
    session = open_resident(str(tmp_path / "m.onnx"))
    for picture in _pictures():
        given = {"x": RECIPE.apply(picture)}
        floats, integers = session.run(None, given)[0], streamed(pack, given)["y"]
        assert np.abs(floats - integers)[:, 2:].max() < 0.05  # a 255th of a thousand is 4
        assert 0 < np.abs(floats - integers)[:, :2].max() < 0.05 * np.abs(floats).max()


def test_integers_answer_nearly_as_floats(tmp_path: Path) -> None:
    model = _network()
    pack = _compiled(model, tmp_path)
    session = open_resident(str(tmp_path / "m.onnx"))
    floats = [session.run(None, {"x": RECIPE.apply(picture)})[0] for picture in _pictures()]
    integers = [streamed(pack, {"x": RECIPE.apply(picture)})["y"] for picture in _pictures()]
    apart = np.abs(np.array(floats) - np.array(integers)).max()
    assert 0 < apart < 0.05 * np.abs(floats).max()
    operators = {layer.operator for layer in pack.manifest.layers}
    assert operators & {"QLinearConv", "QGemm"}
    assert not operators & {"Conv", "Gemm"}
    kept = numpy_helper.to_array(model.graph.initializer[1]).nbytes
    assert pack.manifest.weight_bytes < 0.5 * kept
    assert pack.manifest.parameters == sum(np.prod(t.dims) for t in model.graph.initializer)
    assert pack.manifest.preprocess == RECIPE
    assert pack.manifest.source.file == "m.onnx"
    assert list((tmp_path / "packs" / "m").iterdir()) == [pack.folder]  # no working files


@pytest.mark.parametrize("scales", [(1.0, -2.0, 0.5), (0.0, 1e-9, -1e-30)])
def test_a_batch_norm_that_no_convolution_takes_up_is_of_integers(
    scales: tuple[float, ...], tmp_path: Path
) -> None:
    """As in a DenseNet. Where a channel has hardly a scale, its bias is kept all the same."""
    model = parsed(
        """g (float[1,3,16,16] x) => (float[1,16,4,4] y) {
            a = Conv<pads=[1,1,1,1]>(x, wa)
            b = MaxPool<kernel_shape=[2,2], strides=[2,2]>(a)
            c = BatchNormalization<epsilon=0.001>(b, scale, bias, mean, variance)
            d = Relu(c)
            e = Conv(d, wb)
            y = AveragePool<kernel_shape=[2,2], strides=[2,2]>(e)
        }""",
        {"wa": (24, 3, 3, 3), "wb": (16, 24, 1, 1)},
    )
    generator = np.random.default_rng(3)
    parameters = {
        "scale": np.resize(scales, 24),
        "bias": generator.uniform(0.5, 2, 24),
        "mean": generator.normal(size=24),
        "variance": generator.uniform(0.1, 2, 24),
    }
    for name, array in parameters.items():
        added = numpy_helper.from_array(array.astype(np.float32), name)
        model.graph.initializer.append(added)
    pack = _compiled(model, tmp_path)
    assert "BatchNormalization" not in {layer.operator for layer in pack.manifest.layers}
    floats = [value.name for value in pack.manifest.values if value.dtype == "float32"]
    assert set(floats) <= {"x", "y"}, "what is between the layers is bytes"
    given = {"x": RECIPE.apply(next(_pictures()))}
    expected = open_resident(str(tmp_path / "m.onnx")).run(None, given)[0]
    apart = np.abs(streamed(pack, given)["y"] - expected).max()
    assert 0 < apart < 0.05 * np.abs(expected).max()


_MISH = """
            s = Softplus(b)
            t = Tanh(s)
            mish = Mul(b, t)"""


@pytest.mark.parametrize("is_read_later", [pytest.param(False, marks=pytest.mark.slow), True])
def test_an_activation_of_floats_takes_a_slice_and_the_bytes_it_is_made_of(
    is_read_later: bool, tmp_path: Path
) -> None:
    recipe = Preprocess(size=(256, 256), mean=RECIPE.mean, std=RECIPE.std)
    model = parsed(
        f"""g (float[1,3,256,256] x) => (float[1,8,256,256] y) {{
            a = Conv<pads=[1,1,1,1]>(x, wa)
            c = Conv(a, wc)
            b = Add(a, c){_MISH}
            k = Conv({"b" if is_read_later else "mish"}, wk)
            d = Add(mish, k)
            y = Conv(d, wb)
        }}""",
        {"wa": (16, 3, 3, 3), "wc": (16, 16, 1, 1), "wk": (16, 16, 1, 1), "wb": (8, 16, 1, 1)},
    )
    pack = _compiled(model, tmp_path, recipe=recipe)
    session = open_resident(str(tmp_path / "m.onnx"))
    given = {"x": recipe.apply(next(_pictures()))}
    floats, integers = session.run(None, given)[0], streamed(pack, given)["y"]
    assert 0 < np.abs(floats - integers).max() < 0.05 * np.abs(floats).max()
    manifest = pack.manifest
    assert "QLinearMul" not in {layer.operator for layer in manifest.layers}
    assert (
        max(value.n_bytes for value in manifest.values) <= 2 << 20
    )  # as floats `b` has twice that
    over = [
        value for value in manifest.values if value.parent is not None and value.dtype == "uint8"
    ]
    made_of = {manifest.values[value.parent].name for value in over if value.parent is not None}
    _, bytes_of_b, *_ = (
        call.index
        for piece in manifest.pieces
        for call in piece.outputs
        if call.dtype == "uint8" and call.kind == "value"
    )
    assert (manifest.values[bytes_of_b].name in made_of) != is_read_later


@pytest.mark.parametrize("channels", [pytest.param(16, marks=pytest.mark.slow), 272])
def test_an_activation_of_a_layers_answers_is_looked_up(channels: int, tmp_path: Path) -> None:
    """Also where the layer is computed in parts, whose answers are put together."""
    recipe = Preprocess(size=(16, 16), mean=RECIPE.mean, std=RECIPE.std)
    model = parsed(
        f"""g (float[1,3,16,16] x) => (float[1,8,16,16] y) {{
            a = Conv<pads=[1,1,1,1]>(x, wa)
            b = Conv<pads=[1,1,1,1]>(a, wb){_MISH}
            k = Conv(mish, wk)
            d = LeakyRelu<alpha=0.1>(k)
            y = Conv(d, wd)
        }}""",
        {
            "wa": (channels, 3, 3, 3),
            "wb": (channels, channels, 3, 3),
            "wk": (16, channels, 1, 1),
            "wd": (8, 16, 1, 1),
        },
    )
    pack = _compiled(model, tmp_path, recipe=recipe)
    given = {"x": recipe.apply(next(_pictures()))}
    expected = open_resident(str(tmp_path / "m.onnx")).run(None, given)[0]
    answer = streamed(pack, given)["y"]
    assert 0 < np.abs(answer - expected).max() < 0.05 * np.abs(expected).max()
    assert np.array_equal(open_resident(str(pack.model_path)).run(None, given)[0], answer)
    manifest = pack.manifest
    passed = {
        (manifest.values[call.index].name, call.dtype)
        for piece in manifest.pieces
        for call in piece.outputs
    }
    assert {dtype for name, dtype in passed if name != "y"} == {"uint8"}


def test_what_cannot_be_calibrated_is_named(tmp_path: Path) -> None:
    source = written(_network(), tmp_path / "m.onnx")

    def refused(said: str, **given: object) -> None:
        options = CompileOptions(**{"preprocess": RECIPE, "calibrate": _pictures, **given})  # type: ignore[arg-type]
        with pytest.raises(CompileError, match=said):
            compile_onnx(source, tmp_path / "packs" / "m", options)
        assert not (tmp_path / "packs" / "m").exists()

    refused("needs --preprocess", preprocess=None)
    refused(r"makes one input \[1, 3, 8, 8\]; 'x' is", preprocess=Preprocess(size=(8, 8)))
    refused("for CPUs", target=named_target("cuda-sm72"))


def test_what_is_quantised_already_is_refused(tmp_path: Path) -> None:
    with pytest.raises(CompileError, match=r"\(QuantizeLinear\): it is quantised already"):
        _compiled(qdq(), tmp_path)


def test_a_broken_picture_ends_it(tmp_path: Path) -> None:
    def pictures() -> Iterator[Image.Image]:
        yield from _pictures()
        raise SampleError("cat.png: not a picture")

    with pytest.raises(SampleError, match=r"cat\.png"):
        _compiled(_network(), tmp_path, pictures)


def test_few_pictures_are_said_and_none_are_refused(tmp_path: Path) -> None:
    source, warned = written(_network(), tmp_path / "m.onnx"), list[str]()
    options = CompileOptions(preprocess=RECIPE, calibrate=_pictures, warn=warned.append)
    compile_onnx(source, tmp_path / "packs" / "m", options)
    assert [text.partition(":")[0] for text in warned] == ["calibrated with 3 pictures"]
    with pytest.raises(CompileError, match=r"m\.onnx: no pictures to calibrate with"):
        _compiled(_network(), tmp_path / "packs", lambda: iter(()))


def test_values_that_are_no_numbers_are_named(tmp_path: Path) -> None:
    model = _network()
    for tensor in model.graph.initializer[:2]:
        array = numpy_helper.to_array(tensor) * np.float32(1e25)
        tensor.CopyFrom(numpy_helper.from_array(array, tensor.name))
    with pytest.raises(CompileError, match=r"m\.onnx: value 'c' is NaN or infinite with picture 1"):
        _compiled(model, tmp_path)


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_weights_that_are_no_numbers_are_named(value: float, tmp_path: Path) -> None:
    model = _network()
    array = numpy_helper.to_array(model.graph.initializer[1]).copy()
    array[0, 0, 0, :2] = value
    model.graph.initializer[1].CopyFrom(numpy_helper.from_array(array, "wb"))
    with pytest.raises(CompileError, match=r"m\.onnx: weights 'wb': 2 values are not finite"):
        _compiled(model, tmp_path)
