"""``:detect``: boxes land on what is in the photograph, whatever its shape."""

import asyncio
import io
import json
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import pytest_asyncio
from PIL import Image

from models.compiler import CompileOptions, compile_onnx
from models.detection.boxes import Box, Boxes, find_boxes
from models.detection.heads import ListedHead
from models.detection.recipe import Detection
from models.images.preprocess import Preprocess
from models.packs.pack import open_pack
from pipeline.budget.request_needs import Need, box_mask_bytes
from server.codec.text.writer import PIECE_BYTES
from server.protocol.recognition import box_pieces
from server.settings.settings import Settings
from tests.examples import over
from tests.models.detector import NAMES, SCENES, Scene, square_finder
from tests.models.exporters import FILES, model_of
from tests.server.support import Packs, ServiceUnderTest, error, picture, serving

pytestmark = pytest.mark.asyncio(loop_scope="module")

DETECT = "/v2/models/finder:detect"


@pytest.fixture(scope="module")
def repository(packs: Packs, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A detector, one without a recipe for images, and a classifier."""
    folder = tmp_path_factory.mktemp("detectors")
    for name, described in (("finder", True), ("plain", False)):
        onnx.save(square_finder(described), folder / f"{name}.onnx")
        compile_onnx(folder / f"{name}.onnx", folder / "repository" / name)
    compile_onnx(
        packs.sources["tiny"], folder / "repository" / "tiny", CompileOptions(preprocess=PHOTO)
    )
    for name in EXPORTED:
        onnx.save(model_of(FILES[name]), folder / f"{name}.onnx")
        compile_onnx(folder / f"{name}.onnx", folder / "repository" / name)
    return folder / "repository"


#: Files as Ultralytics writes them, and the field that its boxes have.
EXPORTED = {"yolov8n-seg": "mask", "yolo26n-pose": "keypoints", "yolo26n-obb": "corners"}
PHOTO = Preprocess(size=(16, 16))


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def service(repository: Path) -> AsyncIterator[ServiceUnderTest]:
    budget, requests = 320 << 20, 256 << 20  # eight thousand pixels a side, decoded
    settings = Settings(repository=repository, budget=budget, request_memory=requests, threads=1)
    async with serving(settings) as started:
        yield started


def file_of(image: Image.Image, **options: Any) -> bytes:
    file = io.BytesIO()
    image.save(file, "PNG", **options)
    return file.getvalue()


def lands_on(detections: list[dict[str, Any]], scene: Scene) -> None:
    """Check the two classes above 0.25, and that the first box is the rectangle's.

    Darknet's interpolation is between corners, so that an edge may move by a pixel of the input.
    """
    assert [item["label"] for item in detections] == list(NAMES[:2])
    assert [item["index"] for item in detections] == [0, 1]
    assert [item["score"] for item in detections] == [1.0, 0.5]
    for item in detections:
        np.testing.assert_allclose(item["box"], scene.square, atol=1.5 * scene.pixel)


def ways() -> Iterator[Any]:
    """Each photograph in one way, and one of them in each; the others are slow."""
    for name in SCENES:
        for how in ("raw", "multipart"):
            for suffix in ("", "/versions/1"):
                usual = (how, suffix) == ("raw", "") or name == next(iter(SCENES))
                yield pytest.param(name, how, suffix, marks=() if usual else pytest.mark.slow)


@pytest.mark.parametrize(("name", "how", "suffix"), [*ways()])
async def test_boxes_lie_on_the_photograph(
    service: ServiceUnderTest, name: str, how: str, suffix: str
) -> None:
    scene = SCENES[name]
    data = file_of(scene.image())
    body: dict[str, Any] = {"content": data}
    if how == "multipart":
        body = {"files": {"image": ("lamp", data, "image/x")}}
    response = await service.client.post(f"/v2/models/finder{suffix}:detect", **body)
    document = response.json()
    assert (document["model_name"], document["model_version"]) == ("finder", "1")
    assert document["image"] == {"width": scene.size[0], "height": scene.size[1]}
    assert document["delay_ms"] > 0
    lands_on(document["detections"], scene)


async def test_a_large_photograph_is_answered(service: ServiceUnderTest) -> None:
    """24 million pixels, more than the limit for what is decoded: a camera's JPEG."""
    scene = Scene((5600, 4200), (1050, 630, 2450, 2800))
    file = io.BytesIO()
    scene.image().save(file, "JPEG")
    document = (await service.client.post(DETECT, content=file.getvalue())).json()
    assert document["image"] == {"width": 5600, "height": 4200}
    lands_on(document["detections"], scene)


async def test_media_types_have_no_case(service: ServiceUnderTest) -> None:
    scene = SCENES["wide"]
    head = b'--b\r\nContent-Disposition: form-data; name="a"; filename="a"\r\n\r\n'
    response = await service.client.post(
        DETECT,
        content=head + file_of(scene.image()) + b"\r\n--b--\r\n",
        headers={"content-type": "Multipart/Form-Data; boundary=b"},
    )
    lands_on(response.json()["detections"], scene)


@pytest.mark.parametrize("orientation", range(1, 9))
async def test_boxes_are_those_of_the_upright_photograph(
    service: ServiceUnderTest, orientation: int
) -> None:
    scene = SCENES["wide"]
    turns = {
        2: Image.Transpose.FLIP_LEFT_RIGHT,
        3: Image.Transpose.ROTATE_180,
        4: Image.Transpose.FLIP_TOP_BOTTOM,
        5: Image.Transpose.TRANSPOSE,
        6: Image.Transpose.ROTATE_90,
        7: Image.Transpose.TRANSVERSE,
        8: Image.Transpose.ROTATE_270,
    }
    image = scene.image()
    stored = image.transpose(turns[orientation]) if orientation in turns else image
    exif = Image.Exif()
    exif[0x0112] = orientation
    response = await service.client.post(DETECT, content=file_of(stored, exif=exif))
    document = response.json()
    assert document["image"] == {"width": 900, "height": 300}
    lands_on(document["detections"], scene)


async def test_limits_of_a_request(service: ServiceUnderTest) -> None:
    scene = SCENES["wide"]

    async def labels(**parameters: Any) -> list[str]:
        response = await service.client.post(
            DETECT, params=parameters, content=file_of(scene.image())
        )
        return [item["label"] for item in response.json()["detections"]]

    assert await labels(score_threshold=0.5) == [NAMES[0]]
    assert await labels(score_threshold=1) == []
    assert await labels(score_threshold=0) == list(NAMES[:2])  # the third has no chance at all
    assert await labels(max_detections=1) == [NAMES[0]]
    assert await labels(iou_threshold=0) == list(NAMES[:2])  # of different classes


async def test_clipped_unless_told_otherwise(service: ServiceUnderTest) -> None:
    """A bright border reaches into the grey of the letterbox by a fraction of a pixel at most."""
    white = file_of(Image.new("RGB", (901, 300), (255, 255, 255)))
    for clip in (True, False):
        response = await service.client.post(DETECT, params={"clip": clip}, content=white)
        box = response.json()["detections"][0]["box"]
        np.testing.assert_allclose(box, [0, 0, 901, 300], atol=5)
        inside = min(box) >= 0 and box[2] <= 901 and box[3] <= 300
        assert inside or not clip


async def test_nothing_to_see(service: ServiceUnderTest) -> None:
    """A box of nothing has infinite sizes; it is left out."""
    dark = file_of(Image.new("RGB", (50, 40)))
    response = await service.client.post(DETECT, params={"score_threshold": 0}, content=dark)
    assert (response.status_code, response.json()["detections"]) == (200, [])


@over("field", ["score_threshold", "iou_threshold"])
@over("value", ["-0.1", "1.1", "nan", "inf", "-inf", "", "x"])
async def test_a_threshold_out_of_range(service: ServiceUnderTest, field: str, value: str) -> None:
    response = await service.client.post(DETECT, params={field: value}, content=picture())
    error(response, 400, field)


@over("params", [{"max_detections": 0}, {"max_detections": "x"}, {"clip": 7}])
async def test_other_parameters_out_of_range(
    service: ServiceUnderTest, params: dict[str, Any]
) -> None:
    error(await service.client.post(DETECT, params=params, content=picture()), 400, *params)


@over(
    "path, content, words",
    [
        (DETECT, b"", ["empty"]),
        (DETECT, b"no picture", ["not an image"]),
        (DETECT, picture()[:200], ["damaged"]),
        ("/v2/models/tiny:detect", picture(), ["'tiny'", "--detection"]),
        ("/v2/models/plain:detect", picture(), ["'plain'", "--detection"]),
        ("/v2/models/finder:classify", picture(), ["'finder'", ":detect"]),
    ],
)
async def test_what_cannot_be_answered(
    service: ServiceUnderTest, path: str, content: bytes, words: list[str]
) -> None:
    error(await service.client.post(path, content=content), 400, *words)


@pytest.mark.parametrize("path", ["/v2/models/none:detect", "/v2/models/finder/versions/2:detect"])
async def test_models_that_are_not_there(service: ServiceUnderTest, path: str) -> None:
    error(await service.client.post(path, content=picture()), 404)


async def test_requests_are_counted(service: ServiceUnderTest) -> None:
    labels = {"model": "finder", "outcome": "ok"}
    before = await service.metric("layerstream_requests_total", **labels) or 0
    await service.client.post(DETECT, content=picture())
    assert await service.metric("layerstream_requests_total", **labels) == before + 1


@pytest.mark.parametrize("kind", ["JPEG", "PNG"])
async def test_the_smallest_pool_has_room_for_a_photograph(repository: Path, kind: str) -> None:
    """Of 640 x 480 pixels, as docs/explanation/architecture/memory.md promises."""
    packs = (open_pack(repository / name) for name in ("finder", "plain", "tiny"))
    pool = max(Need.of(pack.manifest).tight_bytes for pack in packs)
    settings = Settings(repository=repository, budget=16 << 20, request_memory=pool, threads=1)
    scene, file = Scene((640, 480), (96, 60, 220, 260)), io.BytesIO()
    scene.image().save(file, kind)
    async with serving(settings) as service:
        document = (await service.client.post(DETECT, content=file.getvalue())).json()
        lands_on(document["detections"], scene)
        answer = await service.client.post("/v2/models/tiny:classify", content=file.getvalue())
        assert answer.status_code == 200
        # Several at once wait for each other. Bytes behind a picture are no fault, and have to be held.
        body = file.getvalue() + bytes(200 << 10)
        posts = (service.client.post(DETECT, content=body) for _ in range(6))
        for answer in await asyncio.gather(*posts):
            assert answer.status_code == 200, answer.text
            lands_on(answer.json()["detections"], scene)
        assert service.inside.request_memory.used_bytes == 0


@over(
    "count, points, pieces",
    [(0, 0, 1), (1, 17, 1), (256, 0, 1), (257, 0, 2), (2000, 0, 8), (90, 17, 4)],
)
async def test_many_boxes_are_written_in_pieces(count: int, points: int, pieces: int) -> None:
    rng = np.random.default_rng(0)
    edges, classes = rng.random((count, 4)), rng.integers(0, 3, count)
    head = ListedHead(
        output="a", kind="yolov8", classes=3, keypoints=(points, 3) if points else None
    )
    detection = Detection(heads=(head,), labels=("a", "b", "\u00e9"))
    scores = rng.random(count).astype(np.float32)
    boxes = Boxes(edges, scores, classes, rng.random((count, points, 3)), detection)
    fields, tail = {"model_name": "m"}, {"delay_ms": 1.5}
    parts = list(box_pieces(fields, "detections", boxes, Box.as_dict, tail))
    assert max(map(len, parts)) <= PIECE_BYTES
    assert len(parts) == pieces
    document = json.loads(b"".join(parts))
    expected = [box.as_dict() for box in boxes.part(0, count)]
    assert document == {"model_name": "m", "detections": expected, "delay_ms": 1.5}
    assert all(("keypoints" in box) == bool(points) for box in expected)


@pytest.mark.parametrize(("name", "field"), EXPORTED.items())
async def test_fields_of_exported_detectors(
    service: ServiceUnderTest, repository: Path, name: str, field: str
) -> None:
    """As ``find_boxes`` has them for the same outputs, which do not depend on the picture."""
    answer = await service.client.post(f"/v2/models/{name}:detect", content=picture())
    assert answer.status_code == 200, answer.text
    detections = answer.json()["detections"]
    assert len(detections) > 10
    assert all({"label", "index", "score", "box", field} == box.keys() for box in detections)
    manifest = open_pack(repository / name).manifest
    assert manifest.detection is not None
    assert manifest.preprocess is not None
    outputs = FILES[name].outputs
    expected = find_boxes(outputs, manifest.detection, manifest.preprocess, (40, 30))
    assert detections == [box.as_dict() for box in expected]
    assert service.inside.request_memory.used_bytes == 0
    has_masks = field == "mask"
    prototypes = outputs["output1"].nbytes if has_masks else 0
    assert (box_mask_bytes(manifest) > prototypes) == has_masks
