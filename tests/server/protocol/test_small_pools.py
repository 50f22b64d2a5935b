"""Photographs to a server whose memory of requests is the smallest that its model may have."""

import io
from collections.abc import AsyncIterator
from pathlib import Path

import numpy as np
import onnx
import pytest
import pytest_asyncio
from onnx import TensorProto, helper
from PIL import Image

from models.compiler import CompileOptions, compile_onnx
from models.images.preprocess import Preprocess
from models.packs.pack import open_pack
from pipeline.budget.request_needs import Need
from server.settings.settings import Settings
from tests.examples import over, thinned
from tests.server.support import ServiceUnderTest, error, serving

pytestmark = pytest.mark.asyncio(loop_scope="module")

SIDE = 512


def mean_colour() -> onnx.ModelProto:
    """Return a classifier of large images: its scores are the means of the channels."""
    image = helper.make_tensor_value_info("image", TensorProto.FLOAT, (1, 3, SIDE, SIDE))
    scores = helper.make_tensor_value_info("scores", TensorProto.FLOAT, (1, 3))
    nodes = [
        helper.make_node("GlobalAveragePool", ["image"], ["means"]),
        helper.make_node("Flatten", ["means"], ["scores"]),
    ]
    graph = helper.make_graph(nodes, "mean", [image], [scores])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)


@pytest_asyncio.fixture(
    scope="module", loop_scope="module", params=["bilinear", "darknet", "opencv"], name="service"
)
async def _service(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[ServiceUnderTest]:
    folder: Path = tmp_path_factory.mktemp("pools")
    onnx.save(mean_colour(), folder / "mean.onnx")
    recipe = Preprocess(size=(SIDE, SIDE), filter=request.param, mean=(127.5,), std=(127.5,))
    compile_onnx(folder / "mean.onnx", folder / "packs" / "mean", CompileOptions(preprocess=recipe))
    pool = Need.of(open_pack(folder / "packs" / "mean").manifest).tight_bytes
    settings = Settings(
        repository=folder / "packs", budget=64 << 20, request_memory=pool, threads=1
    )
    async with serving(settings) as started:
        yield started


def photograph(width: int, height: int, kind: str) -> bytes:
    slope = np.linspace(0, 255, width * height * 3).reshape(height, width, 3)
    file = io.BytesIO()
    Image.fromarray(slope.astype(np.uint8)).save(file, kind)
    return file.getvalue()


@over("kind", ["JPEG", "PNG"])
@over("size", [(640, 480), (480, 640)])
async def test_what_the_budget_promises_is_answered(
    service: ServiceUnderTest, size: tuple[int, int], kind: str
) -> None:
    answer = await service.client.post("/v2/models/mean:classify", content=photograph(*size, kind))
    assert answer.status_code == 200, answer.text


@pytest.mark.parametrize("side", thinned([*range(560, 800, 30), 1000, 1024, 1600], 4))
async def test_larger_ones_are_decoded_smaller_if_they_can(
    service: ServiceUnderTest, side: int
) -> None:
    path = "/v2/models/mean:classify"
    answer = await service.client.post(path, content=photograph(side, side, "JPEG"))
    smallest = side
    while smallest // 2 >= SIDE:
        smallest //= 2
    if answer.status_code == 200:  # the network sees all that it can, and the client knows of what
        decoded = answer.headers.get("x-image-decoded", f"{side}x{side}")
        assert decoded in {f"{side}x{side}", f"{smallest}x{smallest}"}
        assert (decoded == f"{side}x{side}") == ("x-image-decoded" not in answer.headers)
    else:
        error(answer, 413, f"{side}x{side} pixels", "request_memory")
        assert smallest**2 > 640 * 480
    answer = await service.client.post(path, content=photograph(side, side, "PNG"))
    if answer.status_code != 200:
        error(answer, 413, f"{side}x{side} pixels", "request_memory")
