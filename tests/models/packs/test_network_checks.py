"""Layers that the compiler took apart, as a manifest says them, one fault at a time."""

import shutil
from pathlib import Path

import pytest

from models.errors import PackError
from models.network.windows import Window
from models.packs.pack import Pack, open_pack
from tests.models.compiler.optimising.test_quantised import qlinear
from tests.models.nets import written
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
