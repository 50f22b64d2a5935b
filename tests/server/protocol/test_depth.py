"""``:depth``, and ``draw=1`` of every verb: pictures out, of the photograph's size, within its memory."""

import io
from collections.abc import AsyncIterator
from pathlib import Path

import httpx
import numpy as np
import onnx
import pytest
import pytest_asyncio
from numpy.typing import NDArray
from PIL import Image

from models.compiler import CompileOptions, compile_onnx
from models.compiler.writing.hub_config import HubConfig
from models.depth import depth_bytes
from models.packs.pack import open_pack
from pipeline.budget.request_needs import map_bytes, picture_sweep_bytes
from server.requests.drawn import MAX_SIDE, Preview
from server.settings.settings import Settings
from tests.examples import over
from tests.models.detector import square_finder
from tests.models.painter import COLORS, HEIGHT, LETTERBOX, STRETCH, WIDTH, painter, stripes
from tests.server.support import ServiceUnderTest, error, serving

pytestmark = pytest.mark.asyncio(loop_scope="module")
DEPTH = HubConfig("config.json", task="depth")


@pytest.fixture(scope="module")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("deep")
    for name, model, options in (
        ("deep", painter("one"), CompileOptions(preprocess=STRETCH, configs=(DEPTH,))),
        ("boxed", painter("one"), CompileOptions(preprocess=LETTERBOX, configs=(DEPTH,))),
        ("bare", painter("one"), CompileOptions(preprocess=STRETCH)),
        ("segments", painter(), CompileOptions(preprocess=LETTERBOX, labels=COLORS)),
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


def file_of(image: Image.Image) -> bytes:
    file = io.BytesIO()
    image.save(file, "PNG")
    return file.getvalue()


def ramp(width: int, height: int) -> Image.Image:
    """Grey from black on the left to white on the right."""
    row = np.linspace(0, 255, width).round().astype(np.uint8)
    return Image.fromarray(np.tile(row, (height, 1))).convert("RGB")


def png_of(response: httpx.Response) -> Image.Image:
    assert response.status_code == 200, response.text
    assert response.headers["content-type"] == "image/png"
    return Image.open(io.BytesIO(response.content))


def array_of(response: httpx.Response) -> NDArray[np.float32]:
    assert response.status_code == 200, response.text
    result: NDArray[np.float32] = np.load(io.BytesIO(response.content))
    return result


@over("size", [(96, 64), (300, 40), (30, 90), (3, 1)])
@over("name", ["deep", "boxed"])
async def test_depth_lies_on_the_photograph(
    service: ServiceUnderTest, name: str, size: tuple[int, int]
) -> None:
    """The network tells how bright it is: so does the answer, left dark and right bright."""
    path, data = f"/v2/models/{name}:depth", file_of(ramp(*size))
    depth = array_of(await service.client.post(path, content=data, params={"format": "npy"}))
    assert depth.dtype == np.float32
    assert depth.shape == size[::-1]
    if size[0] > 3:  # without the columns next to what is around a letterbox
        row, expected = depth[size[1] // 2], np.linspace(0, 1, size[0])
        np.testing.assert_allclose(row[3:-3], expected[3:-3], atol=0.03)
    for bits in (8, 16):
        answer = await service.client.post(path, content=data, params={"bits": bits})
        shades = np.asarray(png_of(answer)).astype(np.int64)
        minimum, maximum = (
            float(answer.headers[f"x-depth-{end}"]) for end in ("minimum", "maximum")
        )
        assert (minimum, maximum) == (depth.min(), depth.max())
        share = (depth - depth.min()) / (depth.max() - depth.min())
        np.testing.assert_array_equal(shades, np.floor(share * np.float32((1 << bits) - 1)))


async def test_depth_of_the_network_has_its_size(service: ServiceUnderTest) -> None:
    data = file_of(ramp(100, 20))
    for query in ({}, {"format": "npy"}):
        params = {"size": "network", **query}
        answer = await service.client.post("/v2/models/boxed:depth", content=data, params=params)
        if query:
            assert array_of(answer).shape == (HEIGHT, WIDTH)
        else:
            assert png_of(answer).size == (WIDTH, HEIGHT)


async def test_draw_returns_the_photograph_with_results_on_it(service: ServiceUnderTest) -> None:
    """On the photograph, which shows through; a large one is a part as large, no side beyond the most."""
    for size, expected in (((90, 60), (90, 60)), ((2700, 30), (900, 10))):
        image, _ = stripes(*size)
        image.paste((255, 255, 255), (0, 0, size[0] // 2, size[1]))
        for name, verb in (("deep", "depth"), ("segments", "segment"), ("finder", "detect")):
            path = f"/v2/models/{name}:{verb}"
            params = {"draw": "1", **({"score_threshold": "0"} if verb == "detect" else {})}
            answer = await service.client.post(path, content=file_of(image), params=params)
            drawn = np.asarray(png_of(answer)).astype(int)
            assert drawn.shape == (*expected[::-1], 3)
            small = np.asarray(image.resize(expected)).astype(int)
            assert 0 < np.abs(drawn - small).mean() < 128, name
            assert ("x-depth-minimum" in answer.headers) == (verb == "depth")
    assert not service.inside.request_memory.used_bytes


async def test_bad_requests(service: ServiceUnderTest) -> None:
    data = file_of(ramp(8, 8))
    for name, verb, query, words in (
        ("bare", "depth", "", ("'bare' does not estimate depth", "config.json")),
        ("segments", "depth", "", ("it segments them, use :segment",)),
        ("deep", "segment", "", ("it estimates their depth, use :depth",)),
        ("deep", "depth", "?bits=12", ("bits",)),
        ("deep", "depth", "?format=exr", ("format",)),
        ("deep", "depth", "?draw=perhaps", ("draw",)),
    ):
        answer = await service.client.post(f"/v2/models/{name}:{verb}{query}", content=data)
        error(answer, 400, *words)
    error(await service.client.post("/v2/models/deep:depth", content=b"no picture"), 400)
    error(await service.client.post("/v2/models/nobody:depth", content=data), 404)


async def test_memory_of_depth_is_counted(repository: Path) -> None:
    deep, bare = (open_pack(repository / name).manifest for name in ("deep", "bare"))
    area, large = (HEIGHT, WIDTH), (4000, 3000)
    assert map_bytes(deep, large) == depth_bytes(area, large) < 2 << 20
    assert map_bytes(bare, large) == 0
    assert picture_sweep_bytes(deep, "depth", 0, large) > map_bytes(deep, large)


@over("free_bytes", [1 << 10, 4 << 20, 16 << 20, 1 << 30])
@over("size", [(1, 1), (640, 480), (4000, 3000), (1, 100_000)])
async def test_a_preview_uses_half_of_the_free_bytes(
    free_bytes: int, size: tuple[int, int]
) -> None:
    preview = Preview(free_bytes)
    width, height = preview.size_of(size)
    assert 1 <= width <= min(size[0], MAX_SIDE)
    assert 1 <= height <= min(size[1], MAX_SIDE)
    if free_bytes >= 4 << 20:
        assert preview.n_bytes(size) <= free_bytes // 2 + 16 * (width + height)
    preview.keep(Image.new("RGB", size), size)
    with Image.open(io.BytesIO(preview.drawn(lambda image: image))) as drawn:
        assert drawn.size == (width, height)
