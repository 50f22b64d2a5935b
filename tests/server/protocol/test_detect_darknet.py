"""From a cfg to the boxes of ``:detect``, beside Darknet's loops; inputs that are no squares."""

import itertools
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import pytest
import pytest_asyncio
from numpy.typing import NDArray
from PIL import Image

from models.compiler import compile_onnx
from models.darknet.importer import import_network
from models.detection.heads import DetectionHead
from models.detection.recipe import Detection
from models.images.placement import Size
from models.records import read_record
from server.settings.settings import Settings
from tests.examples import thinned
from tests.models.detection import box_oracle as oracle
from tests.models.images.test_letterbox import loops, photograph
from tests.server.protocol.test_detect import file_of
from tests.server.support import ServiceUnderTest, arrays, serving

pytestmark = pytest.mark.asyncio(loop_scope="module")

SCORE, IOU = 0.02, 0.4
ANCHORS = ((8.0, 6.0), (14.0, 20.0), (30.0, 25.0), (40.0, 60.0))


def convolution(filters: int, size: int, stride: int, activation: str = "leaky") -> str:
    return (
        f"[convolutional]\nfilters={filters}\nsize={size}\nstride={stride}\npad=1\n"
        f"activation={activation}\n"
    )


BODY = convolution(8, 3, 2) + convolution(8, 3, 2) + convolution(16, 3, 2)


def two_levels(last: str, options: str) -> str:
    """Layers 4 and 7: anchors 2 and 3 at a stride of 8, 0 and 1 at a stride of 16."""
    anchors = ", ".join(f"{width:g},{height:g}" for width, height in ANCHORS)
    yolo = f"[yolo]\nnum=4\nclasses=3\nanchors={anchors}\n{options}\nmask="
    fine = convolution(16, 1, 1, last) + f"{yolo}2,3\n"
    coarse = "[route]\nlayers=2\n" + convolution(16, 3, 2, last) + f"{yolo}0,1\n"
    return BODY + fine + coarse


def yolo_heads(**fields: Any) -> tuple[DetectionHead, DetectionHead]:
    common = {"kind": "yolo", "classes": 3, **fields}
    return (
        read_record(DetectionHead, {"output": "yolo_4", "anchors": ANCHORS[2:], **common}),
        read_record(DetectionHead, {"output": "yolo_7", "anchors": ANCHORS[:2], **common}),
    )


def detection(
    *heads: DetectionHead, nms: Literal["greedy", "diou"] = "greedy", **fields: Any
) -> Detection:
    return Detection(heads=heads, nms=nms, score_threshold=SCORE, iou_threshold=IOU, **fields)


@dataclass(frozen=True)
class Case:
    """A network for an input of ``size`` (width, height), and what its outputs are."""

    size: Size
    layers: str
    detection: Detection


CASES = {
    "yolo": Case((96, 64), two_levels("linear", "scale_x_y=1.1"), detection(*yolo_heads(scale_x_y=1.1))),
    "scaled": Case(
        (64, 96),
        two_levels("logistic", "scale_x_y=2\nnew_coords=1\nnms_kind=diounms\nbeta_nms=0.7"),
        detection(*yolo_heads(scale_x_y=2.0, new_coords=True), nms="diou", beta=0.7),
    ),
    "region": Case(
        (128, 64),
        BODY + convolution(16, 1, 1, "linear")
        + "[region]\nanchors=0.6,0.9, 2.5,1.5\nclasses=3\nnum=2\ncoords=4\nsoftmax=1\n",
        detection(
            DetectionHead(output="output", kind="region", anchors=((0.6, 0.9), (2.5, 1.5)), classes=3)
        ),
    ),
}  # fmt: skip


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def service(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[ServiceUnderTest]:
    folder = tmp_path_factory.mktemp("darknet")
    for name, case in CASES.items():
        width, height = case.size
        cfg = folder / f"{name}.cfg"
        cfg.write_text(f"[net]\nwidth={width}\nheight={height}\nchannels=3\n{case.layers}")
        import_network(cfg, None, folder / f"{name}.onnx")
        compile_onnx(folder / f"{name}.onnx", folder / "repository" / name)
    settings = {"repository": folder / "repository", "budget": 64 << 20, "threads": 1}
    async with serving(Settings.model_validate(settings)) as started:
        yield started


def letterboxed(image: Image.Image, size: Size) -> NDArray[np.float32]:
    """letterbox_image: the resized image in the middle of grey."""
    (width, height), (w, h) = size, image.size
    inner = (max(1, w * height // h), height)
    if width / w < height / h:
        inner = (width, max(1, h * width // w))
    left, top = (width - inner[0]) // 2, (height - inner[1]) // 2
    boxed = np.full((height, width, 3), 0.5)
    boxed[top : top + inner[1], left : left + inner[0]] = loops(image, inner) / 255
    return boxed.transpose(2, 0, 1)[None].astype(np.float32)


@pytest.mark.parametrize(
    ("size", "name"),
    thinned(itertools.product([(70, 23), (31, 90), (96, 64), (5, 3), (1, 1)], CASES), 3),
)
async def test_boxes_are_darknets(service: ServiceUnderTest, name: str, size: Size) -> None:
    case, image = CASES[name], photograph(*size, seed=1)
    tensor = letterboxed(image, case.size)
    outputs = arrays(await service.infer(name, {"image": tensor}))
    expected = oracle.detect(outputs, case.detection, case.size, size, letterbox=True)
    response = await service.client.post(
        f"/v2/models/{name}:detect",
        params={"score_threshold": SCORE, "iou_threshold": IOU, "clip": False},
        content=file_of(image),
    )
    found = sorted(
        (item["index"], item["score"], *item["box"]) for item in response.json()["detections"]
    )
    assert len(found) == len(expected) > 5
    right = sorted((number, score, *edges) for number, score, edges in expected)
    np.testing.assert_allclose(found, right, rtol=1e-4, atol=1e-4 * max(size))
