"""``:segment`` and ``:infer`` of photographs: masks lie on what is there, tensors are the network's."""

import io
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import onnx
import pytest
import pytest_asyncio
from numpy.typing import NDArray
from PIL import Image

from models.compiler import CompileOptions, compile_onnx
from models.images.preprocess import Preprocess
from models.packs.pack import open_pack
from models.segmentation import NONE, Segmentation
from pipeline.budget.request_needs import Need, mask_bytes, picture_sweep_bytes
from server.settings.settings import Settings
from tests.examples import over
from tests.models.detector import square_finder
from tests.models.painter import COLORS, HEIGHT, LETTERBOX, STRETCH, WIDTH, painter, stripes
from tests.server.support import ServiceUnderTest, arrays, error, request, serving

pytestmark = pytest.mark.asyncio(loop_scope="module")

CROP = Preprocess(size=(WIDTH, HEIGHT), resize="crop", scale=1 / 255)


@pytest.fixture(scope="module")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("painters")
    named = CompileOptions(preprocess=LETTERBOX, labels=COLORS)
    small = Segmentation(output="mask")
    one = Segmentation(output="mask", threshold=0.5)
    for name, model, options in (
        ("boxed", painter(), named),
        ("cropped", painter("indices"), replace(named, preprocess=CROP, labels=())),
        ("small", painter("small"), replace(named, segmentation=small, preprocess=STRETCH)),
        ("one", painter("one"), CompileOptions(preprocess=STRETCH, segmentation=one)),
        ("plain", painter(), CompileOptions(preprocess=STRETCH)),
        ("bare", painter(), CompileOptions()),
        ("finder", square_finder(), CompileOptions()),
    ):
        onnx.save(model, folder / f"{name}.onnx")
        compile_onnx(folder / f"{name}.onnx", folder / "repository" / name, options)
    return folder / "repository"


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def service(repository: Path) -> AsyncIterator[ServiceUnderTest]:
    settings = Settings(repository=repository, budget=64 << 20, request_memory=16 << 20, threads=1)
    async with serving(settings) as started:
        yield started


def file_of(image: Image.Image, kind: str = "PNG") -> bytes:
    file = io.BytesIO()
    image.save(file, kind)
    return file.getvalue()


def unrolled(document: dict[str, Any]) -> NDArray[np.int64]:
    mask = document["mask"]
    pairs = np.array(mask["runs"]).reshape(-1, 2)
    flat = np.repeat(*pairs.T)
    found: NDArray[np.int64] = flat.reshape(mask["height"], mask["width"])
    return found


def pixels(response: httpx.Response) -> NDArray[np.uint8]:
    assert response.status_code == 200
    assert response.headers["content-type"] == "image/png"
    with Image.open(io.BytesIO(response.content)) as image:
        return np.asarray(image)


def near(found: NDArray[Any], expected: NDArray[Any], stride: int) -> None:
    """All but pixels within ``stride`` of a border between stripes, where colours mix, are as expected."""
    borders = np.flatnonzero(np.diff(expected[0].astype(int)))
    columns = np.arange(expected.shape[1])
    clear = np.all(np.abs(columns[:, None] - borders[None] - 0.5) > stride, axis=1)
    assert clear.any()
    np.testing.assert_array_equal(found[:, clear], expected[:, clear])


@over("size", [(96, 64), (300, 40), (30, 90), (3, 1)])
@over("name", ["boxed", "small"])
async def test_a_mask_lies_on_the_photograph(
    service: ServiceUnderTest, name: str, size: tuple[int, int]
) -> None:
    image, expected = stripes(*size)
    document = (
        await service.client.post(f"/v2/models/{name}:segment", content=file_of(image))
    ).json()
    assert (document["model_name"], document["model_version"]) == (name, "1")
    assert document["image"] == {"width": size[0], "height": size[1]}
    found = unrolled(document)
    assert found.shape == expected.shape
    if size[0] > 3:  # of fewer pixels none is clear of all others
        near(found, expected, 3 * max(1, size[0] // WIDTH, size[1] // HEIGHT))
    assert {each["label"] for each in document["classes"]} <= set(COLORS)
    assert all(each["pixels"] == np.sum(found == each["index"]) for each in document["classes"])


@pytest.mark.parametrize(
    "ask", [{"params": {"format": "png"}}, {"headers": {"accept": "image/png"}}]
)
async def test_a_png_says_the_same(service: ServiceUnderTest, ask: dict[str, Any]) -> None:
    place = "/v2/models/boxed:segment"
    for size in ((50, 20), (700, 500)):
        data = file_of(stripes(*size)[0])
        runs = await service.client.post(place, content=data, headers={"accept": "*/*"})
        shown = await service.client.post(place, content=data, **ask)
        np.testing.assert_array_equal(pixels(shown), unrolled(runs.json()))
    asked: dict[str, Any] = {"params": {"format": "json"}, "headers": {"accept": "image/png"}}
    data = file_of(stripes(8, 8)[0])
    answer = await service.client.post(place, content=data, **asked)
    assert answer.headers["content-type"] == "application/json"


async def test_a_mask_of_the_network_has_its_size(service: ServiceUnderTest) -> None:
    """A letterbox: above and below is what the grey bars look like to it."""
    data = file_of(stripes(96, 32)[0])
    for name, shape in (("boxed", (HEIGHT, WIDTH)), ("small", (HEIGHT // 2, WIDTH // 2))):
        answer = await service.client.post(
            f"/v2/models/{name}:segment", content=data, params={"size": "network"}
        )
        assert unrolled(answer.json()).shape == shape


async def test_what_was_cut_off_is_no_class(service: ServiceUnderTest) -> None:
    """Of 300 x 64 pixels the network sees the 96 in the middle."""
    image, expected = stripes(300, 64)
    answer = await service.client.post("/v2/models/cropped:segment", content=file_of(image))
    document = answer.json()
    found = unrolled(document)
    assert np.all(found[:, :102] == NONE)
    assert np.all(found[:, 198:] == NONE)
    np.testing.assert_array_equal(found[:, 110:190], expected[:, 110:190])
    assert [each["label"] for each in document["classes"]] == ["class 1"]  # it has no name


async def test_one_plane_is_one_class_and_a_background(service: ServiceUnderTest) -> None:
    image = Image.new("RGB", (40, 20))
    image.paste((250, 0, 0), (0, 0, 20, 20))
    answer = await service.client.post("/v2/models/one:segment", content=file_of(image))
    document = answer.json()
    assert [(each["index"], each["pixels"]) for each in document["classes"]] == [(0, 400), (1, 400)]
    assert document["classes"][0]["color"] == "#000000"


@pytest.mark.parametrize("name", ["plain", "boxed"])
async def test_tensors_of_a_photograph_are_those_of_its_tensor(
    service: ServiceUnderTest, repository: Path, name: str
) -> None:
    image, _ = stripes(200, 90)
    recipe = open_pack(repository / name).manifest.preprocess
    assert recipe is not None
    tensors = request({"image": recipe.apply(image)})
    expected = arrays(await service.client.post(f"/v2/models/{name}/infer", json=tensors))
    place = f"/v2/models/{name}:infer"
    answer = await service.client.post(place, content=file_of(image))
    np.testing.assert_array_equal(arrays(answer)["mask"], expected["mask"])
    asked: dict[str, Any] = {"params": {"binary_data_output": "true"}, "content": file_of(image)}
    answer = await service.client.post(place, **asked)
    behind = int(answer.headers["inference-header-content-length"])
    assert answer.content[behind:] == expected["mask"].tobytes()
    form: dict[str, Any] = {"files": {"image": ("a", file_of(image), "image/png")}}
    again = await service.client.post(f"/v2/models/{name}/versions/1:infer", **form)
    np.testing.assert_array_equal(arrays(again)["mask"], expected["mask"])


@over(
    "place, words",
    [
        ("plain:segment", ("does not segment images", "--segmentation")),
        ("bare:segment", ("does not segment images", "--segmentation")),
        ("finder:segment", ("does not segment images", "it detects objects, use :detect")),
        ("boxed:classify", ("does not classify images", "it segments them, use :segment")),
        ("boxed:detect", ("does not detect objects",)),
        ("bare:infer", ("does not take images", "--preprocess")),
        ("boxed:segment?format=gif", ("query.format",)),
        ("boxed:segment?size=1", ("query.size",)),
        ("plain:infer?binary_data_output=x", ("query.binary_data_output",)),
    ],
)
async def test_what_cannot_be_asked_is_refused_in_a_line(
    service: ServiceUnderTest, place: str, words: tuple[str, ...]
) -> None:
    data = file_of(stripes(8, 8)[0])
    error(await service.client.post(f"/v2/models/{place}", content=data), 400, *words)


@pytest.mark.parametrize("place", ["boxed:segment", "plain:infer"])
async def test_what_is_no_picture_is_refused(service: ServiceUnderTest, place: str) -> None:
    for data, word in (
        (b"", "empty"),
        (b"no image", "not an image"),
        (b"\x89PNG\r\n\x1a\n", "image"),
    ):
        error(await service.client.post(f"/v2/models/{place}", content=data), 400, word)


async def test_a_mask_of_many_pixels_takes_no_memory(service: ServiceUnderTest) -> None:
    """6 million pixels, in a pool of 16 MiB: they are not held; and the pool is empty behind it."""
    image, expected = stripes(2600, 2300)
    data = file_of(image, "JPEG")
    for ask in ({"format": "png"}, {"format": "json"}):
        answer = await service.client.post("/v2/models/boxed:segment", content=data, params=ask)
        assert answer.status_code == 200
        found = pixels(answer) if ask["format"] == "png" else unrolled(answer.json())
        near(found, expected, 300)
    assert not service.inside.request_memory.used_bytes


async def test_what_a_mask_takes_is_counted(repository: Path) -> None:
    boxed, plain = (open_pack(repository / name).manifest for name in ("boxed", "plain"))
    assert mask_bytes(boxed) == WIDTH * HEIGHT
    assert mask_bytes(plain) == 0
    assert picture_sweep_bytes(boxed, "infer") - picture_sweep_bytes(boxed, "segment") >= (
        (3 * 4 - 1) * WIDTH * HEIGHT - (256 << 10)
    )
    assert Need.of(plain).picture_bytes >= Need.of(boxed).picture_bytes > 0
    assert Need.of(open_pack(repository / "bare").manifest).picture_bytes == 0
