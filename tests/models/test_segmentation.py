"""Masks: each pixel of a photograph has the class that the network gives where it lies, or none."""

import io
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from PIL import Image

from models.compiler import CompileOptions, compile_onnx
from models.drawing import draw_mask
from models.errors import CompileError, ModelError
from models.images.placement import ImagePlacement, Size
from models.images.preprocess import Preprocess
from models.packs.pack import open_pack
from models.records import read_record
from models.segmentation import NONE, Counted, Mask, Segmentation, classes_of, read_segmentation
from server.requests.masks import png, runs
from tests.examples import over
from tests.models.painter import COLORS, LETTERBOX, STRETCH, painter
from tests.models.refusal import refuses

SIZES = st.tuples(st.integers(1, 60), st.integers(1, 60))


def drawn(*shape: int, seed: int = 0) -> NDArray[np.float32]:
    return np.random.default_rng(seed).normal(size=shape).astype(np.float32)


@over("shape", [(3, 5, 7), (2, 1, 1), (255, 2, 3), (21, 300, 200), (4, 2, 20_000)])
@over("layout", ["NCHW", "NHWC"])
def test_the_best_score_is_the_class(shape: tuple[int, ...], layout: Any) -> None:
    scores = drawn(*shape)
    output = scores if layout == "NCHW" else np.ascontiguousarray(scores.transpose(1, 2, 0))
    found = classes_of(Segmentation(output="a", layout=layout), output[None])
    np.testing.assert_array_equal(found, scores.argmax(axis=0))


def test_equal_scores_are_the_first_and_nan_is_none() -> None:
    recipe, scores = Segmentation(output="a"), np.ones((1, 3, 4, 4), np.float32)
    assert not np.any(classes_of(recipe, scores))
    scores[0, :, 1, 1] = -np.inf, np.inf, 0
    found = classes_of(recipe, scores)
    assert found is not None
    assert found[1, 1] == 1
    for plane in range(3):
        assert (
            classes_of(recipe, np.where(np.arange(3)[:, None, None] == plane, np.nan, scores))
            is None
        )


@over("dtype", ["int64", "int32", "uint8"])
@over("shape", [(1, 4, 6), (1, 1, 4, 6)])
def test_what_names_no_class_is_none(dtype: str, shape: tuple[int, ...]) -> None:
    named = np.arange(24).reshape(shape).astype(dtype)
    named.reshape(-1)[:3] = [254, 255, 255] if dtype == "uint8" else [254, 256, -1]
    found = classes_of(Segmentation(output="a"), named)
    assert found is not None
    assert found.ravel().tolist() == [254, NONE, NONE, *range(3, 24)]


@pytest.mark.parametrize("shape", [(1, 4, 6), (1, 1, 4, 6)])
def test_what_is_above_a_threshold_is_there(shape: tuple[int, ...]) -> None:
    scores = drawn(*shape)
    found = classes_of(Segmentation(output="a", threshold=0.25), scores)
    np.testing.assert_array_equal(found, (scores > np.float32(0.25)).reshape(4, 6))


def placed(resize: Any, network: Size, photograph: Size) -> ImagePlacement:
    return Preprocess(size=network, resize=resize).placement(photograph, whole=True)


@given(SIZES, SIZES, st.sampled_from(["stretch", "crop", "letterbox"]))
def test_a_pixel_has_the_class_of_where_it_lies(
    network: Size, photograph: Size, resize: Any
) -> None:
    recipe = Segmentation(output="a")
    classes = np.random.default_rng(0).integers(0, 9, network[::-1]).astype(np.uint8)
    placement = placed(resize, network, photograph)
    mask = Mask.of_photograph(recipe, classes, placement, photograph)
    got = np.concatenate([*mask.bands()])
    assert got.shape == photograph[::-1]
    for row in range(photograph[1]):
        for column in range(photograph[0]):
            # Centres of pixels, in parts of the input, then in pixels of it.
            x, y = (
                ((place + 0.5) / length * extent + corner) * there
                for place, length, extent, corner, there in zip(
                    (column, row),
                    photograph,
                    placement.extent,
                    placement.corner,
                    network,
                    strict=True,
                )
            )
            inside = 0 <= x < network[0] and 0 <= y < network[1]
            assert got[row, column] == (classes[int(y), int(x)] if inside else NONE)


@given(SIZES, SIZES)
def test_every_pixel_of_a_letterbox_lies_on_one_of_the_photograph(
    network: Size, photograph: Size
) -> None:
    """The border is the same one that the tensor has."""
    recipe = Preprocess(size=network, resize="letterbox", pad_value=0)
    seen = recipe.apply(Image.new("RGB", photograph, (255, 255, 255)))[0, 0]
    placement = recipe.placement(photograph, whole=True)
    mask = Mask.of_photograph(
        Segmentation(output="a"), (seen > 127).astype(np.uint8), placement, photograph
    )
    assert all(np.all(band == 1) for band in mask.bands())


@given(SIZES, SIZES)
def test_all_ways_of_a_mask_say_the_same(network: Size, photograph: Size) -> None:
    """Runs, a PNG with a palette, and areas; also of long rows and of many, which come in bands."""
    recipe = Segmentation(output="a", labels=("background", "a", "b"))
    classes = np.random.default_rng(1).integers(0, 3, network[::-1]).astype(np.uint8)
    mask = Mask.of_photograph(recipe, classes, placed("crop", network, photograph), photograph)
    agree(mask)


@over("size", [(40_000, 3), (3, 40_000), (300, 200)])
def test_large_masks_come_in_bands(size: Size) -> None:
    recipe = Segmentation(output="a", labels=("background", "a", "b"))
    classes = np.random.default_rng(1).integers(0, 3, (20, 30)).astype(np.uint8)
    mask = Mask.of_photograph(recipe, classes, ImagePlacement(), size)
    assert max(band.size for band in mask.bands()) <= max(size[0], 1 << 14)
    agree(mask)


def agree(mask: Mask) -> None:
    expected = np.concatenate([*mask.bands()])
    counted = Counted(mask)
    flat = np.array([each for some in runs(mask, counted) for each in some]).reshape(-1, 2)
    assert np.all(flat[:, 1] > 0)
    assert np.all(flat[1:, 0] != flat[:-1, 0])  # none goes on after it has ended
    np.testing.assert_array_equal(np.repeat(*flat.T).reshape(expected.shape), expected)
    areas = counted.areas()
    assert [area.pixels for area in areas] == sorted((a.pixels for a in areas), reverse=True)
    assert all(area.pixels == np.count_nonzero(expected == area.index) for area in areas)
    with Image.open(io.BytesIO(b"".join(png(mask)))) as image:
        assert (image.mode, image.size) == ("P", mask.size)
        assert image.text == {"classes": "\n".join(mask.segmentation.labels)}  # type: ignore[attr-defined]
        np.testing.assert_array_equal(np.asarray(image), expected)
        colors = np.asarray(image.convert("RGBA"))
    for index in range(3):
        shown = colors[expected == index]
        assert np.all(shown == (*mask.color(index), 255 * (index > 0)))
    assert np.all(colors[expected == NONE][:, 3] == 0)


def test_what_is_nothing_is_not_drawn() -> None:
    recipe = Segmentation(output="a", labels=("__background__", "cat"))
    mask = Mask.of_network(recipe, np.array([[0, 1, NONE]], np.uint8))
    image = Image.new("RGB", (3, 1), (10, 20, 30))
    drawn = np.asarray(draw_mask(image, mask))
    assert drawn[0, 0].tolist() == drawn[0, 2].tolist() == [10, 20, 30]
    blended = np.mean([mask.color(1), (10, 20, 30)], axis=0)
    assert np.abs(drawn[0, 1] - blended).max() <= 0.5


RECOGNISED = [
    (painter("softmax"), (), "mask"),
    (painter("scores"), COLORS, "mask"),
    (painter("scores", planes=21), (), "mask"),
    (painter("indices"), (), "mask"),
    (painter("scores"), (), None),  # as well a picture
    (painter("one"), (), None),
    (painter("small"), (), None),
]


@pytest.mark.parametrize(("model", "labels", "expected"), RECOGNISED)
def test_what_clearly_segments_needs_no_recipe(
    model: onnx.ModelProto, labels: tuple[str, ...], expected: str | None, tmp_path: Path
) -> None:
    onnx.save(model, tmp_path / "m.onnx")
    options = CompileOptions(preprocess=STRETCH, labels=labels)
    folder = compile_onnx(tmp_path / "m.onnx", tmp_path / "made" / "m", options)
    manifest = open_pack(folder).manifest
    assert (manifest.segmentation and manifest.segmentation.output) == expected
    assert manifest.verb == ("infer" if expected is None else "segment")
    if manifest.segmentation:
        assert manifest.segmentation.labels == labels


def test_nothing_segments_without_pictures(tmp_path: Path) -> None:
    onnx.save(painter("softmax"), tmp_path / "m.onnx")
    folder = compile_onnx(tmp_path / "m.onnx", tmp_path / "made" / "m")
    assert open_pack(folder).manifest.verb is None


@over(
    "tail, recipe, labels, words",
    [
        ("scores", {"output": "b"}, (), ("output 'b': no such output; there are 'mask'",)),
        ("one", {}, (), ("float32[1, 1, 64, 96]", "or has a threshold")),
        ("scores", {"threshold": 0.5}, (), ("with a threshold it is float32[1, rows, columns]",)),
        ("indices", {"threshold": 0.5}, (), ("int64[1, 64, 96]",)),
        ("scores", {"layout": "NHWC"}, COLORS, ("3 labels for 96 classes",)),
        ("small", {}, ("a",), ("1 labels for 3 classes",)),
    ],
)
def test_a_recipe_that_does_not_fit_is_refused_in_a_line(
    tail: str,
    recipe: dict[str, Any],
    labels: tuple[str, ...],
    words: tuple[str, ...],
    tmp_path: Path,
) -> None:
    onnx.save(painter(tail), tmp_path / "m.onnx")
    segmentation = read_record(Segmentation, {"output": "mask", **recipe})
    options = CompileOptions(preprocess=LETTERBOX, segmentation=segmentation, labels=labels)
    with refuses(CompileError, tmp_path / "m.onnx", "segmentation", *words):
        compile_onnx(tmp_path / "m.onnx", tmp_path / "made" / "m", options)


def test_a_recipe_is_read(tmp_path: Path) -> None:
    path = tmp_path / "segmentation.toml"
    path.write_text('output = "mask"\nthreshold = 0.5\n')
    assert read_segmentation(path) == Segmentation(output="mask", threshold=0.5)
    path.write_text('output = "mask"\ncolour = 1\n')
    with refuses(ModelError, f"{path}:2", "colour: no such key"):
        read_segmentation(path)
