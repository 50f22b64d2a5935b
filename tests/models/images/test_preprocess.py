"""Recipes and labels read from files, and what they do to pictures and scores."""

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from models.classification import top_classes
from models.errors import ModelError
from models.images.placement import Resize
from models.images.preprocess import Preprocess, read_labels, read_preprocess
from models.packs.records.ports import Classification
from tests.examples import over
from tests.models.refusal import refuses


@over(
    "text, field",
    [
        ("", "size"),
        ("size = [224]", "size 2"),
        ("size = [224, 0]", "size 2"),
        ("size = [224, -224]", "size 2"),
        ("size = [224, 224, 3]", "size"),
        ("size = 224", "size"),
        ('size = ["a", 1]', "size 1"),
        ("size = [1.5, 1]", "size 1"),
        ("size = [8, 8]\ncolour = 'RGB'", "colour"),
        ('size = [8, 8]\n"a\\nb" = 1', "a\\nb"),
        ("size = [8, 8]\ncolor = 'rgb'", "color"),
        ("size = [8, 8]\nresize = 'zoom'", "resize"),
        ("size = [8, 8]\nfilter = 'box'", "filter"),
        ("size = [8, 8]\nlayout = 'HWC'", "layout"),
        ("size = [8, 8]\nmean = [1, 2]", "mean"),
        ("size = [8, 8]\nmean = [1, 2, nan]", "mean 3"),
        ("size = [8, 8]\nstd = [1, 0, 1]", "std 2"),
        ("size = [8, 8]\nstd = [1, -0.0, 1]", "std 2"),
        ("size = [8, 8]\nstd = [inf, 1, 1]", "std 1"),
        ("size = [8, 8]\nscale = nan", "scale"),
        ("size = [8, 8]\npad_value = 256", "pad_value"),
        ("size = [8, 8]\npad_value = nan", "pad_value"),
    ],
)
def test_fields_that_make_no_sense_are_named(text: str, field: str, tmp_path: Path) -> None:
    path = tmp_path / "recipe.toml"
    path.write_text(text)
    key = field.partition(" ")[0]
    lines = [number for number, line in enumerate(text.splitlines(), 1) if line.startswith(key)]
    place = ":".join(map(str, [path, *lines]))
    with refuses(ModelError, f"{place}: {field}: "):
        read_preprocess(path)


@over("content", [b"size = ", b"{}", b"size = [8, 8", b"size = [8, 8]\nsize = [8, 8]"])
def test_file_that_is_not_toml_is_refused(content: bytes, tmp_path: Path) -> None:
    path = tmp_path / "recipe.toml"
    path.write_bytes(content)
    with refuses(ModelError, path, "not TOML"):
        read_preprocess(path)


def test_place_in_a_file_that_is_not_toml(tmp_path: Path) -> None:
    path = tmp_path / "recipe.toml"
    for content, words in ((b"a = 1\nb =\n", ":2: not TOML"), (b"a = 1\n\xff", ":2: not UTF-8")):
        path.write_bytes(content)
        with refuses(ModelError, f"{path}{words}"):
            read_preprocess(path)


def test_missing_files_are_named(tmp_path: Path) -> None:
    with refuses(ModelError, tmp_path / "none.toml", "No such file"):
        read_preprocess(tmp_path / "none.toml")
    with refuses(ModelError, tmp_path / "none.txt", "No such file"):
        read_labels(tmp_path / "none.txt")
    with refuses(ModelError, tmp_path, "directory"):
        read_preprocess(tmp_path)
    with refuses(ModelError, tmp_path, "directory"):
        read_labels(tmp_path)


def test_recipe_is_read(tmp_path: Path) -> None:
    path = tmp_path / "recipe.toml"
    path.write_text(
        'size = [6, 4]\nresize = "letterbox"\ncolor = "BGR"\nmean = [1, 2, 3]\npad_value = 0'
    )
    assert read_preprocess(path) == Preprocess(
        size=(6, 4), resize="letterbox", color="BGR", mean=(1, 2, 3), pad_value=0
    )


@over(
    "content, reason",
    [(b"", "no labels"), (b"\n \n\t\n", "no labels"), (b"caf\xe9\n", "not UTF-8")],
)
def test_labels_that_cannot_be_read_are_refused(
    content: bytes, reason: str, tmp_path: Path
) -> None:
    path = tmp_path / "labels.txt"
    path.write_bytes(content)
    with refuses(ModelError, path, reason):
        read_labels(path)


def test_labels_are_lines_without_blanks(tmp_path: Path) -> None:
    path = tmp_path / "labels.txt"
    path.write_bytes(
        "tench\r\n\n  great white shark \ncaf\N{LATIN SMALL LETTER E WITH ACUTE}".encode()
    )
    assert read_labels(path) == ("tench", "great white shark", "caf\xe9")


def test_a_byte_order_mark_is_no_part_of_the_text(tmp_path: Path) -> None:
    """Editors on Windows write one; Darknet's cfg may have it, too."""
    labels, recipe = tmp_path / "labels.txt", tmp_path / "recipe.toml"
    labels.write_text("person\ndog\n", "utf-8-sig")
    recipe.write_text("size = [6, 4]", "utf-8-sig")
    assert read_labels(labels) == ("person", "dog")
    assert read_preprocess(recipe) == Preprocess(size=(6, 4))


RECIPES = st.builds(
    Preprocess,
    size=st.tuples(st.integers(1, 40), st.integers(1, 40)),
    resize=st.sampled_from(["stretch", "crop", "letterbox"]),
    filter=st.sampled_from(["nearest", "bilinear", "bicubic", "lanczos", "opencv"]),
    color=st.sampled_from(["RGB", "BGR", "GRAY"]),
    layout=st.sampled_from(["NCHW", "NHWC", "CHW"]),
    pad_value=st.floats(0, 255),
)


@given(
    recipe=RECIPES,
    size=st.tuples(st.integers(1, 90), st.integers(1, 90)),
    mode=st.sampled_from(["RGB", "L", "RGBA", "P", "CMYK", "1", "I;16"]),
)
def test_every_picture_becomes_the_tensor_promised(
    recipe: Preprocess, size: tuple[int, int], mode: str
) -> None:
    tensor = recipe.apply(Image.new(mode, size))
    assert tensor.shape == recipe.shape
    assert tensor.dtype == np.float32
    assert tensor.flags.c_contiguous
    assert ((tensor >= 0) & (tensor <= 255)).all()


@given(recipe=RECIPES, color=st.tuples(*[st.integers(0, 255)] * 3))
def test_a_plain_picture_keeps_its_colour(recipe: Preprocess, color: tuple[int, int, int]) -> None:
    """Same aspect ratio: no bars, nothing cut, one colour in the order that the recipe says."""
    width, height = recipe.size
    tensor = recipe.apply(Image.new("RGB", (2 * width, 2 * height), color))
    last = tensor if recipe.layout == "NHWC" else np.moveaxis(tensor, -3, -1)
    shade = Image.new("RGB", (1, 1), color).convert("L").getpixel((0, 0))
    expected = {"RGB": color, "BGR": color[::-1], "GRAY": shade}[recipe.color]
    assert (last == np.array(expected, np.float32)).all()


def test_numbers_are_one_or_one_a_channel() -> None:
    gray = Preprocess(size=(2, 1), color="GRAY", mean=(100,), std=(2,))
    assert gray.apply(Image.new("RGB", (2, 1), (110, 110, 110))).ravel().tolist() == [5, 5]
    same = Preprocess(size=(1, 1), mean=(10,)).apply(Image.new("RGB", (1, 1), (11, 12, 13)))
    assert same.ravel().tolist() == [1, 2, 3]
    with pytest.raises(ValueError, match="mean: 3 numbers for 1 channels"):
        Preprocess(size=(1, 1), color="GRAY", mean=(1, 2, 3))
    with pytest.raises(ValueError, match="std: 2 numbers for 3 channels"):
        Preprocess(size=(1, 1), std=(1, 2))


@pytest.mark.parametrize(
    ("resize", "image", "is_enough"),
    [
        ("stretch", (40, 20), True),
        ("stretch", (39, 90), False),
        ("crop", (90, 19), False),
        ("letterbox", (40, 10), True),
        ("letterbox", (10, 20), True),
        ("letterbox", (39, 10), False),
    ],
)
def test_an_image_that_would_be_enlarged_is_too_small(
    resize: Resize, image: tuple[int, int], is_enough: bool
) -> None:
    assert Preprocess(size=(40, 20), resize=resize).sees_all(image) is is_enough


def test_letterbox_pads_and_crop_cuts() -> None:
    wide = Image.new("RGB", (40, 10), (255, 255, 255))
    padded = Preprocess(size=(20, 20), resize="letterbox", pad_value=7).apply(wide)[0, 0]
    assert (padded[:5] == 7).all()
    assert (padded[15:] == 7).all()
    assert (padded[8:12] == 255).all()
    wide.paste((0, 0, 0), (0, 0, 15, 10))
    cut = Preprocess(size=(20, 20), resize="crop", filter="nearest").apply(wide)[0, 0]
    assert (cut == 255).all()


def test_mean_scale_and_std_follow_the_colour() -> None:
    recipe = Preprocess(
        size=(1, 1), color="BGR", mean=(10, 20, 30), std=(2, 4, 5), scale=0.5, layout="NHWC"
    )
    tensor = recipe.apply(Image.new("RGB", (1, 1), (130, 60, 20)))
    assert tensor.ravel().tolist() == pytest.approx([2.5, 5.0, 10.0])


@given(
    scores=st.lists(st.floats(-(2.0**40), 2.0**40, width=32), min_size=1, max_size=20),
    count=st.integers(1, 25),
    named=st.booleans(),
)
def test_best_classes_come_first(scores: list[float], count: int, named: bool) -> None:
    labels = tuple(f"class {i}" for i in range(len(scores))) if named else ()
    array = np.array(scores, np.float32).reshape(1, -1, 1)
    best = top_classes(Classification(output="y", scores="logits", labels=labels), array, count)
    assert len(best) == min(count, len(scores))
    order = [item.index for item in best]
    assert order == sorted(range(len(scores)), key=lambda i: (-softmax(scores)[i], i))[:count]
    assert all(
        item.label == (labels[item.index] if named else f"class {item.index}") for item in best
    )
    whole = top_classes(Classification(output="y", scores="logits"), array, len(scores))
    assert sum(item.probability for item in whole) == pytest.approx(1)


def softmax(scores: list[float]) -> list[float]:
    array = np.array(scores, np.float32)
    powers = np.exp(array.astype(np.float64) - array.max())
    return list((powers / powers.sum()).tolist())


def test_probabilities_are_taken_as_they_are() -> None:
    classification = Classification(output="y", scores="probabilities", labels=("a", "b", "c"))
    best = top_classes(classification, np.array([[0.25, 0.5, 0.25]], np.float32), 2)
    assert [(item.label, item.probability) for item in best] == [("b", 0.5), ("a", 0.25)]
