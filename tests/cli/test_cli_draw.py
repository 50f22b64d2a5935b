"""Detectors on the command line: what is printed, and what is drawn on the photograph."""

import io
import re
from pathlib import Path

import numpy as np
import onnx
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from PIL import Image

from models.compiler import compile_onnx
from models.detection.boxes import Box
from models.detection.masks import BoxMask
from models.drawing import draw_boxes, line_width, text_color
from models.images.preprocess import Preprocess
from models.records import read_record
from models.segmentation import color_of
from tests.examples import examples
from tests.models.detector import NAMES, SCENES, SIZES_RECORD, Scene, square_finder
from tests.models.exporters import FILES, model_of
from tests.server.support import BAD, Cli, Packs

SCENE = SCENES["wide"]


@pytest.fixture(scope="module")
def finder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("finder")
    onnx.save(square_finder(), folder / "finder.onnx")
    return compile_onnx(folder / "finder.onnx", folder / "finder")


@pytest.fixture
def photo(tmp_path: Path) -> Path:
    SCENE.image().save(tmp_path / "photo.png")
    return tmp_path / "photo.png"


def pixels(image: Image.Image) -> NDArray[np.uint8]:
    return np.asarray(image.convert("RGB"))


def test_detections_are_printed(cli: Cli, finder: Path, photo: Path) -> None:
    document = cli("run", finder, "--image", photo, "--json").document
    assert [item["label"] for item in document["detections"]] == list(NAMES[:2])
    assert document["predictions"] == []
    for item in document["detections"]:
        np.testing.assert_allclose(item["box"], SCENE.square, atol=1.5 * SCENE.pixel)
    shown = cli("run", finder, "--image", photo)
    assert shown.code == 0
    for word in ("x_min", *NAMES[:2], "0.50"):  # labels are no markup
        assert word in shown.out
    assert not re.search(r"\d\.\d{3}", shown.out.split("┘")[0])  # two decimals
    assert "more, of" not in shown.out


def test_printed_detections_are_capped(cli: Cli, finder: Path, photo: Path) -> None:
    command = ("run", finder, "--image", photo, "--top-k", 1)
    shown = cli(*command).out
    assert NAMES[0] in shown
    assert NAMES[1] not in shown
    assert "and 1 more, of lower scores: --top-k 2 prints all" in shown
    assert len(cli(*command, "--json").document["detections"]) == 2  # programs get all
    assert "no boxes found" in cli(*command, "--score-threshold", 1).out


def test_thresholds(cli: Cli, finder: Path, photo: Path) -> None:
    command = ("run", finder, "--image", photo, "--json")
    assert len(cli(*command, "--score-threshold", 0.5).document["detections"]) == 1
    assert len(cli(*command, "--iou-threshold", 0).document["detections"]) == 2
    for option in ("--score-threshold", "--iou-threshold"):
        for value in ("1.5", "-1", "nan", "x"):
            cli(*command, option, value).refuses(BAD)


def test_tensors_have_boxes_in_pixels_of_the_input(cli: Cli, finder: Path, tmp_path: Path) -> None:
    tensor = np.zeros((1, 3, 64, 96), np.float32)
    tensor[:, :, 16:48, 12:60] = 1
    np.save(tmp_path / "x.npy", tensor)
    document = cli("run", finder, "--input", tmp_path / "x.npy", "--json").document
    np.testing.assert_allclose(document["detections"][0]["box"], [12, 16, 60, 48], atol=1e-3)


def test_a_classifier_has_no_detections(cli: Cli, packs: Packs, photo: Path) -> None:
    document = cli("run", packs.repository / "tiny", "--image", photo, "--json").document
    assert "detections" not in document


@pytest.mark.parametrize(
    ("suffix", "kind"), [(".png", "PNG"), (".JPG", "JPEG"), (".webp", "WEBP"), (".tif", "TIFF")]
)
def test_boxes_are_drawn(
    cli: Cli, finder: Path, photo: Path, tmp_path: Path, suffix: str, kind: str
) -> None:
    out = tmp_path / f"out{suffix}"
    drawn = cli("run", finder, "--image", photo, "--draw", out, "--score-threshold", 0.6)
    assert drawn.code == 0, drawn.err
    assert drawn.out.endswith(f"{out}: written\n")
    with Image.open(out) as image:
        assert (image.format, image.size) == (kind, SCENE.size)
        found = pixels(image).astype(int)
    x_min, y_min, _, y_max = SCENE.square
    middle = found[(y_min + y_max) // 2, x_min - 10 : x_min + 10]
    assert (
        np.abs(middle - color_of(0)).sum(axis=1).min() < 200
    )  # WebP halves the resolution of colours


def test_boxes_are_drawn_on_the_upright_photograph(
    cli: Cli, finder: Path, photo: Path, tmp_path: Path
) -> None:
    exif = Image.Exif()
    exif[0x0112] = 6
    stored = SCENE.image().transpose(Image.Transpose.ROTATE_90)
    stored.save(tmp_path / "lying.png", exif=exif)
    for name, image in (("a", photo), ("b", tmp_path / "lying.png")):
        assert cli("run", finder, "--image", image, "--draw", tmp_path / f"{name}.png").code == 0
    with Image.open(tmp_path / "a.png") as upright, Image.open(tmp_path / "b.png") as turned:
        np.testing.assert_array_equal(pixels(upright), pixels(turned))


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("out.txt", ["out.txt", ".png"]),
        ("out", ["out", ".png"]),
        ("none/out.png", ["none/out.png", "No such file"]),
        ("folder.png", ["folder.png", "directory"]),
    ],
)
def test_drawings_that_cannot_be_written(
    cli: Cli, finder: Path, photo: Path, tmp_path: Path, name: str, words: list[str]
) -> None:
    (tmp_path / "folder.png").mkdir()
    cli("run", finder, "--image", photo, "--draw", tmp_path / name).refuses(BAD, *words)


def test_what_cannot_be_drawn(
    cli: Cli, finder: Path, packs: Packs, photo: Path, tmp_path: Path
) -> None:
    out = tmp_path / "out.png"
    np.save(tmp_path / "x.npy", np.zeros((1, 3, 64, 96), np.float32))
    tiny = packs.repository / "tiny"
    cli("run", tiny, "--image", photo, "--draw", out).refuses(BAD, "--draw", "not a detector")
    tensor = ("--input", tmp_path / "x.npy")
    cli("run", finder, *tensor, "--draw", out).refuses(BAD, "--draw", "--image")
    assert not out.exists()


def test_compile_and_inspect_say_what_a_detector_is(cli: Cli, tmp_path: Path) -> None:
    onnx.save(square_finder(described=False), tmp_path / "f.onnx")
    (tmp_path / "preprocess.toml").write_text('size = [96, 64]\nresize = "letterbox"')
    (tmp_path / "detection.toml").write_text(
        'iou_threshold = 0.3\n[[heads]]\noutput = "found"\nkind = "yolo"\n'
        "anchors = [[16, 8]]\nclasses = 3\n"
    )
    (tmp_path / "labels.txt").write_text("\n".join(NAMES))
    command = ("compile", tmp_path / "f.onnx", "-o", tmp_path / "f", "--json")
    options = [
        (f"--{name}", tmp_path / f"{name}.{suffix}")
        for name, suffix in (("preprocess", "toml"), ("detection", "toml"), ("labels", "txt"))
    ]
    summary = cli(*command, *(part for option in options for part in option)).document
    assert summary["labels"] == 3
    assert summary["source_sizes"] is None
    assert summary["detection"] == {
        "classes": 3,
        "heads": ["found"],
        "nms": "greedy",
        "score_threshold": 0.25,
        "iou_threshold": 0.3,
    }
    (tmp_path / "detection.toml").write_text("heads = []")
    again = (*command, "--force", "--detection", tmp_path / "detection.toml")
    cli(*again).refuses(BAD, "detection.toml", "heads")


def test_inspect_shows_what_the_source_counted(cli: Cli, finder: Path) -> None:
    assert cli("inspect", finder, "--json").document["source_sizes"] == SIZES_RECORD
    shown = cli("inspect", finder)
    assert "darknet counts 7 layers, 3.0 MiB of weights, 1.0 MiB in the largest" in shown.out


BOXES = st.builds(
    Box,
    index=st.integers(0, 10_000),
    label=st.text(max_size=30),
    score=st.floats(0, 1),
    edges=st.tuples(*[st.floats(-1e30, 1e30) | st.floats(-20, 320)] * 4),
)


@examples(3, many=500)
@given(
    boxes=st.lists(BOXES, max_size=4),
    size=st.tuples(st.integers(1, 300), st.integers(1, 300)),
)
def test_any_boxes_can_be_drawn(boxes: list[Box], size: tuple[int, int]) -> None:
    image = Image.new("RGB", size)
    assert draw_boxes(image, boxes).size == size
    assert image.getbbox() is None  # the original stays as it was


@pytest.mark.parametrize("scene", SCENES.values(), ids=SCENES)
def test_labels_stay_in_the_picture(scene: Scene) -> None:
    """Wherever a box lies, its label shows: the ground is the class's colour, whole letters on it."""
    width, height = 640, 400
    image = Image.new("RGB", (width, height), (128, 128, 128))
    left, top, right, bottom = (
        edge * whole / side
        for edge, whole, side in zip(scene.square, (width, height) * 2, scene.size * 2, strict=True)
    )
    for shift in ((0, 0), (-left, -top), (width - right, -top), (width - right, height - bottom)):
        edges = (left + shift[0], top + shift[1], right + shift[0], bottom + shift[1])
        drawn = pixels(draw_boxes(image, [Box(5, "umbrella", 0.5, edges)]))
        ground = (drawn == color_of(5)).all(axis=2)
        letters = ~ground & (drawn != 128).any(axis=2)  # smooth: few pixels have the text's colour
        rows, columns = np.nonzero(letters)
        assert letters.sum() > 100
        assert columns.max() - columns.min() > 40
        # Around the letters is ground on every side, so none is cut off.
        inner = slice(columns.min() - 1, columns.max() + 2)
        for row in (rows.min() - 1, rows.max() + 1):
            assert ground[row, inner].mean() > 0.9


def test_colours_are_far_apart_and_text_stands_out() -> None:
    colors = np.array([color_of(index) for index in range(20)])
    apart = np.abs(colors[:, None] - colors[None]).sum(axis=2)
    assert apart[np.triu_indices(20, 1)].min() > 30
    for color in colors:
        luma = float(np.dot(color, (0.299, 0.587, 0.114)))
        text = text_color((int(color[0]), int(color[1]), int(color[2])))
        assert abs(luma - text[0]) >= 100
    assert (line_width((300, 200)), line_width((4000, 3000))) == (1, 14)


def test_a_recipe_may_be_darknets(cli: Cli, tmp_path: Path) -> None:
    """--preprocess takes the filter, too."""
    onnx.save(square_finder(), tmp_path / "f.onnx")
    recipe = tmp_path / "recipe.toml"
    recipe.write_text('size = [96, 64]\nresize = "crop"\nfilter = "darknet"')
    summary = cli(
        "compile", tmp_path / "f.onnx", "-o", tmp_path / "f", "--preprocess", recipe, "--json"
    ).document
    expected = Preprocess(size=(96, 64), resize="crop", filter="darknet")
    assert read_record(Preprocess, summary["preprocess"]) == expected


def test_a_photograph_is_drawn_in_its_colours() -> None:
    """Only lines and labels change."""
    file = io.BytesIO()
    SCENE.image().save(file, "PNG")
    image = Image.open(file).convert("RGB")
    drawn = draw_boxes(image, [Box(1, "a", 0.5, (100, 100, 300, 250))])
    changed = (pixels(drawn) != pixels(image)).any(axis=2)
    assert changed[150:240, 110:290].sum() == 0
    assert changed[:, :90].sum() == 0


def test_visible_key_points_are_dots() -> None:
    points = [[20, 20, 0.9], [60, 20, 0.1], [1e30, -5, 0.9]]
    box = Box(0, "a", 0.5, (5, 5, 90, 90), keypoints=points)
    drawn = pixels(draw_boxes(Image.new("RGB", (100, 100)), [box]))
    assert tuple(drawn[20, 20]) == color_of(0)
    assert not drawn[20, 60].any()


def test_a_rotated_box_is_drawn_between_its_corners() -> None:
    corners = [[50, 30], [90, 60], [50, 90], [10, 60]]
    drawn = pixels(
        draw_boxes(Image.new("RGB", (100, 100)), [Box(0, "", 0.5, (10, 30, 90, 90), None, corners)])
    )
    assert tuple(drawn[45, 70]) == color_of(0)  # in the middle of a side
    assert not drawn[88, 88].any()  # the corner of the upright box


def test_a_mask_is_laid_over_the_object() -> None:
    box = Box(0, "", 0.5, (20, 20, 60, 60), mask=BoxMask(2, 1, [1, 1]))
    drawn = pixels(draw_boxes(Image.new("RGB", (100, 100)), [box]))
    assert not drawn[50, 25].any()
    assert tuple(drawn[50, 55]) == tuple(round(value * 128 / 255) for value in color_of(0))


def test_a_file_of_ultralytics_needs_nothing_else(cli: Cli, tmp_path: Path, photo: Path) -> None:
    onnx.save(model_of(FILES["yolov8n"]), tmp_path / "yolov8n.onnx")
    pack = compile_onnx(tmp_path / "yolov8n.onnx", tmp_path / "packs" / "yolov8n")
    printed = cli("run", pack, "--image", photo)
    assert printed.code == 0
    assert "person" in printed.out
    detections = cli("run", pack, "--image", photo, "--json").document["detections"]
    assert {item["label"] for item in detections} == {"person", "bicycle", "car"}
