"""What the compiler wrote otherwise, as a manifest says it, one fault at a time."""

import shutil
from pathlib import Path

import pytest

from models.errors import PackError
from models.network.windows import Window
from models.packs.pack import Pack, open_pack
from models.packs.target import host_target
from tests.models.compiler.optimising.test_quantised import qlinear
from tests.models.nets import parsed, written
from tests.models.packs.test_pack import edit, put
from tests.models.refusal import refuses
from tests.models.streamed import compiled


@pytest.fixture(scope="module")
def quantised_pack(tmp_path_factory: pytest.TempPathFactory) -> Pack:
    folder = tmp_path_factory.mktemp("quantised")
    return compiled(written(qlinear(), folder / "m.onnx"), folder / "packs" / "m")


def test_it_is_as_the_cases_say(quantised_pack: Pack) -> None:
    (item,) = quantised_pack.manifest.window_products
    assert item.windows == (Window(kernel=3, before=1, behind=1),) * 2


@pytest.mark.parametrize(
    ("way", "value", "field", "reason"),
    [
        (("source",), "none", "", "'none' is no value of a known size"),
        (("output",), "y", ".windows", "they make [8, 8] pixels, not [64, 8]"),
        (("windows", 0, "kernel"), 0, ".windows.0", "greater than 0"),
        (("windows", 0, "kernel"), 1 << 40, ".windows", "they make"),
        (("windows", 1, "before"), -1, ".windows", "they make [8, 6] pixels, not [8, 8]"),
        (("windows", 1), {"factor": 2, "stride": 2}, ".windows", "repeat"),
        (("windows",), [{}], ".windows", ""),
        (("name",), "z", ".name", "Extra inputs"),
    ],
)
def test_what_cannot_be_is_refused(
    way: tuple[str | int, ...],
    value: object,
    field: str,
    reason: str,
    quantised_pack: Pack,
    tmp_path: Path,
) -> None:
    folder = Path(shutil.copytree(quantised_pack.folder, tmp_path / "m" / "1"))
    path = edit(folder, put("window_products", 0, *way, value))
    with refuses(PackError, path, f"window_products.0{field}", reason):
        open_pack(folder)


def test_what_is_no_image_is_refused(quantised_pack: Pack, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(quantised_pack.folder, tmp_path / "m" / "1"))
    values = quantised_pack.manifest.values
    matrix = next(value.name for value in values if len(value.shape) == 2)
    path = edit(folder, put("window_products", 0, "source", matrix))
    with refuses(PackError, path, "window_products.0", "are no images"):
        open_pack(folder)


@pytest.fixture(scope="module")
def filled_pack(tmp_path_factory: pytest.TempPathFactory) -> Pack:
    """Convolutions of 20 channels, and a softmax along them."""
    folder = tmp_path_factory.mktemp("filled")
    text = "g (float[1,3,4,5] x) => (float y) { a = Conv(x, w)\n b = Conv(a, v)\n y = Softmax<axis=1>(b) }"
    model = parsed(text, {"w": (20, 3, 1, 1), "v": (20, 20, 1, 1)})
    return compiled(written(model, folder / "m.onnx"), folder / "packs" / "m")


@pytest.mark.skipif(host_target().block == 1, reason="no blocked layout here")
def test_channels_that_only_fill_are_said(filled_pack: Pack) -> None:
    manifest = filled_pack.manifest
    shapes = {value.name: value.shape for value in manifest.values}
    assert list(manifest.used_channels.values()) == [20, 20]
    blocks = -(-20 // manifest.target.block) * manifest.target.block
    assert {shapes[name] for name in manifest.used_channels} == {(1, blocks, 4, 5)}


@pytest.mark.parametrize(
    ("name", "count", "reason"),
    [
        ("none", 20, "fill a block of []"),
        ("y", 20, "fill a block of [1, 20, 4, 5]"),
        ("y", 21, "fill a block of [1, 20, 4, 5]"),
        ("y", 4, "fill a block of [1, 20, 4, 5]"),
        ("y", 0, "greater than 0"),
    ],
)
def test_channels_that_fill_no_block_are_refused(
    name: str, count: int, reason: str, filled_pack: Pack, tmp_path: Path
) -> None:
    folder = Path(shutil.copytree(filled_pack.folder, tmp_path / "m" / "1"))
    path = edit(folder, put("used_channels", {name: count}))
    with refuses(PackError, path, f"used_channels.{name}", reason):
        open_pack(folder)


@pytest.mark.parametrize(
    ("field", "value", "reason"),
    [
        ("source", "none", ": 'none' and 'y' are not of one size"),
        ("source", "x", ": 'x' and 'y' are not of one size"),
        ("axis", 4, ".axis: 4: there is none of [1, 20, 4, 5]"),
        ("axis", -1, ".axis: Input should be greater than or equal to 0"),
    ],
)
def test_a_softmax_that_cannot_be_is_refused(
    field: str, value: object, reason: str, filled_pack: Pack, tmp_path: Path
) -> None:
    (item,) = filled_pack.manifest.turned_softmaxes
    assert (item.output, item.axis) == ("y", 1)
    folder = Path(shutil.copytree(filled_pack.folder, tmp_path / "m" / "1"))
    path = edit(folder, put("turned_softmaxes", 0, field, value))
    with refuses(PackError, path, "turned_softmaxes.0", reason):
        open_pack(folder)
