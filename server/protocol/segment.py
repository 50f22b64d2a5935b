"""Segmentation of an image: photograph in, a mask out, which class each of its pixels is."""

import json
from collections.abc import Iterator
from typing import Any, Literal

from pydantic import BaseModel

from models.packs.manifest import Manifest
from models.segmentation import Bytes, Counted, Mask, classes_of
from pipeline.execution.given import Arrays
from server.errors import NotFiniteError
from server.protocol.answers import Pieces
from server.protocol.pictures import Picture, read_picture
from server.protocol.routing import Asked
from server.protocol.serving import Inference, Kept
from server.requests.masks import PACKER_BYTES, png, runs

#: What a mask as a picture is.
PNG = "image/png"
_SMALL_PIXELS = 1 << 16


class SegmentQuery(BaseModel):
    """``format``: None: png where it is what is accepted. ``size``: of the photograph, or the network's."""

    format: Literal["json", "png"] | None = None
    size: Literal["photograph", "network"] = "photograph"


async def segment(
    asked: Asked, name: str, query: SegmentQuery, version: str | None = None
) -> Pieces:
    """Say which class each pixel of the image (raw body, or the file of a form) is: runs, or a PNG.

    A PNG is sent where `format` or the header `Accept` says so; its pixels are classes, 255 for none.
    """
    async with Inference(asked.context, asked.exchange, name, version) as model:
        async with model.reading():
            picture = await read_picture(asked, model, "segment", _fault(name, model.manifest))
        recipe = model.manifest.segmentation
        assert recipe is not None

        def keep(outputs: Arrays) -> Kept[Bytes]:
            classes = classes_of(recipe, outputs[recipe.output])
            if classes is None:
                raise NotFiniteError(
                    f"output {recipe.output!r} has NaN; infer gives it as binary data"
                )
            return Kept(classes, classes.nbytes + PACKER_BYTES)

        mask = _mask(model.manifest, await model.compute(picture, keep), picture, query)
        as_png = query.format == "png" or (
            query.format is None and PNG in (asked.header("accept") or "")
        )
        if as_png:
            return Pieces(lambda: _few(mask, png(mask)), media=PNG)
        head = {
            "model_name": name,
            "model_version": model.pack.version,
            "image": {"width": picture.size[0], "height": picture.size[1]},
        }
        tail = {"delay_ms": model.delay_ms}
        return Pieces(lambda: _few(mask, _pieces(head, mask, tail)))


def _fault(name: str, manifest: Manifest) -> str | None:
    if manifest.segmentation is not None:
        return None
    uses = {"classify": "it classifies them", "detect": "it detects objects"}
    verb = manifest.verb or ""
    why = f"{uses[verb]}, use :{verb}" if verb in uses else "it was compiled without --segmentation"
    return f"model {name!r} does not segment images: {why}"


def _mask(manifest: Manifest, classes: Bytes, picture: Picture, query: SegmentQuery) -> Mask:
    recipe, preprocess = manifest.segmentation, manifest.preprocess
    assert recipe is not None
    assert preprocess is not None
    if query.size == "network":
        return Mask.of_network(recipe, classes)
    placement = preprocess.placement(picture.size, whole=True)
    return Mask.of_photograph(recipe, classes, placement, picture.size)


def _few(mask: Mask, pieces: Iterator[bytes]) -> Iterator[bytes]:
    """Yield ``pieces``, those of a small mask as one, which is made within a few milliseconds."""
    if mask.size[0] * mask.size[1] > _SMALL_PIXELS:
        yield from pieces
    else:
        yield b"".join(pieces)


def _pieces(head: dict[str, Any], mask: Mask, tail: dict[str, Any]) -> Iterator[bytes]:
    """Yield one JSON object: the fields of ``head``, the mask, its classes, the fields of ``tail``."""
    width, height = mask.size
    counted = Counted(mask)
    text = f'{_json(head)[:-1]},"mask":{{"width":{width},"height":{height},"runs":['
    comma = ""
    for some in runs(mask, counted):
        if not some:  # others have their turn all the same
            yield b""
            continue
        yield (text + comma + ",".join(map(str, some))).encode()
        text, comma = "", ","
    areas = _json([area.as_dict() for area in counted.areas()])
    yield f'{text}]}},"classes":{areas},{_json(tail)[1:]}'.encode()


def _json(fields: Any) -> str:
    return json.dumps(fields, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
