"""Networks that segment on the command line: shares are printed, masks drawn and saved."""

from pathlib import Path

import numpy as np
import onnx
import pytest
from PIL import Image

from cli.questions import question
from models.compiler import CompileOptions, compile_onnx
from models.compiler.writing.hub_config import HubConfig
from models.packs.pack import read_pack
from server.settings.settings import Settings
from tests.models.painter import COLORS, LETTERBOX, STRETCH, painter, stripes
from tests.server.support import BAD, Cli


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A painter with labels, and one that is nothing but a network of tensors."""
    folder = tmp_path_factory.mktemp("painters")
    onnx.save(painter(), folder / "m.onnx")
    compile_onnx(
        folder / "m.onnx", folder / "painter", CompileOptions(preprocess=LETTERBOX, labels=COLORS)
    )
    compile_onnx(folder / "m.onnx", folder / "plain", CompileOptions(preprocess=STRETCH))
    onnx.save(painter("one"), folder / "d.onnx")
    deep = CompileOptions(preprocess=STRETCH, configs=(HubConfig("config.json", task="depth"),))
    compile_onnx(folder / "d.onnx", folder / "deep", deep)
    return folder


def test_masks_are_printed_drawn_and_saved(cli: Cli, folder: Path, tmp_path: Path) -> None:
    image, expected = stripes(300, 100)
    image.save(tmp_path / "photo.png")
    mask, drawn = tmp_path / "mask.png", tmp_path / "drawn.png"
    command = ("run", folder / "painter", "--image", tmp_path / "photo.png")
    shown = cli(*command, "--mask", mask, "--draw", drawn)
    assert shown.code == 0
    for word in (*COLORS, "%", f"{mask}: written", f"{drawn}: written"):
        assert str(word) in shown.out
    clear = np.abs(np.arange(300) % 100 - 49.5) < 40
    with Image.open(mask) as saved:
        found = np.asarray(saved)
    np.testing.assert_array_equal(found[:, clear], expected[:, clear])
    with Image.open(drawn) as picture:
        assert picture.size == image.size
    classes = cli(*command, "--json").document["classes"]
    assert {each["label"]: each["pixels"] for each in classes} == {
        label: int(np.sum(found == index)) for index, label in enumerate(COLORS)
    }
    # Without a photograph the mask is the network's.
    np.save(tmp_path / "x.npy", np.zeros((1, 3, 64, 96), np.float32))
    shown = cli("run", folder / "painter", "--input", tmp_path / "x.npy", "--json")
    (only,) = shown.document["classes"]
    assert only["pixels"] == 64 * 96


def test_depth_is_drawn(cli: Cli, folder: Path, tmp_path: Path) -> None:
    """What is bright and what is not have the colours of the ends."""
    image = Image.new("RGB", (96, 64))
    image.paste((255, 255, 255), (48, 0, 96, 64))
    image.save(tmp_path / "photo.png")
    drawn = tmp_path / "drawn.png"
    run = cli("run", folder / "deep", "--image", tmp_path / "photo.png", "--draw", drawn)
    assert run.code == 0, run.err
    with Image.open(drawn) as picture:
        pixels = np.asarray(picture).astype(int)
    assert pixels.shape == (64, 96, 3)
    assert np.ptp(pixels[:, 4:44], axis=(0, 1)).max() == 0
    assert (pixels[0, 90] - pixels[0, 4]).max() > 100
    assert "depth mask (config.json)" in " ".join(cli("inspect", folder / "deep").out.split())


def test_what_is_no_mask_is_refused_before_it_runs(cli: Cli, folder: Path, tmp_path: Path) -> None:
    image, _ = stripes(30, 10)
    image.save(tmp_path / "photo.png")
    given = ("--image", tmp_path / "photo.png", "--mask")
    refused = cli("run", folder / "plain", *given, tmp_path / "mask.png")
    assert refused.code == BAD
    assert "does not segment" in refused.err
    refused = cli("run", folder / "painter", *given, tmp_path / "mask.jpg")
    assert refused.code == BAD
    assert "not the name of a PNG" in refused.err


def test_recipes_are_options(cli: Cli, folder: Path, tmp_path: Path) -> None:
    (tmp_path / "p.toml").write_text("size = [96, 64]\n")
    recipe = tmp_path / "s.toml"
    recipe.write_text('output = "mask"\nbackground = 0\n')
    command = ("compile", folder / "m.onnx", "-o", tmp_path / "made" / "m", "--force")
    made = cli(*command, "--preprocess", tmp_path / "p.toml", "--segmentation", recipe)
    assert made.code == 0
    assert "a class for each pixel" in cli("inspect", tmp_path / "made" / "m").out
    found = cli("inspect", tmp_path / "made" / "m", "--json").document["segmentation"]
    assert (found["output"], found["background"]) == ("mask", 0)
    refused = cli(*command, "--segmentation", recipe)
    assert refused.code == BAD
    assert "--segmentation needs --preprocess" in refused.err
    recipe.write_text('output = "other"\n')
    refused = cli(*command, "--preprocess", tmp_path / "p.toml", "--segmentation", recipe)
    assert refused.code == BAD
    assert "'other': no such output; there are 'mask'" in refused.err


@pytest.mark.parametrize(("name", "verb"), [("painter", "segment"), ("plain", "infer")])
def test_up_asks_for_what_there_is(folder: Path, name: str, verb: str, tmp_path: Path) -> None:
    manifest = read_pack(folder / name).manifest
    settings = Settings(repository=folder, budget=1 << 30)

    def line(source: Path) -> str:
        return question(manifest, name, "http://127.0.0.1:8080", settings, source)

    alone = folder / name
    assert line(alone).split("  # any photograph")[0].endswith(f"/v2/models/{name}:{verb}")
    source = tmp_path / "model.onnx"
    for picture in ("a.png", "model.JPG"):
        (tmp_path / picture).touch()
        assert line(source).endswith(
            f"--data-binary @{tmp_path / picture} http://127.0.0.1:8080/v2/models/{name}:{verb}"
        )
