"""Inference that gives tensors: the Open Inference Protocol's infer, and the same of a photograph."""

from collections.abc import Sequence

from pydantic import BaseModel

from models.packs.manifest import Manifest
from pipeline.execution.given import Arrays
from server.codec import (
    Body,
    Coding,
    Framing,
    ModelAnswer,
    Output,
    WantedOutput,
    answer_coding,
)
from server.codec.classes import best_classes
from server.codec.messages import all_wanted
from server.protocol.pictures import read_picture
from server.protocol.pieces import Pieces
from server.protocol.routing import Asked
from server.protocol.serving import Inference, Kept, array_bytes
from server.requests.tensors import read_tensors


async def infer(asked: Asked, name: str, version: str | None = None) -> Pieces:
    """Run the model on the tensors of the body."""
    exchange, headers = asked.exchange, asked.headers
    coding = answer_coding(headers)
    async with Inference(asked.context, exchange, name, version) as model:
        async with model.reading(names_timeout=True):
            request = await read_tensors(exchange, Framing.of(headers), model.manifest, model.check)
        is_raw = coding == "identity" and all(wanted.is_binary for wanted in request.wanted)
        outputs = await model.compute(
            request, lambda found: kept_outputs(request.wanted, found, model.manifest, is_raw)
        )
        return _sent(ModelAnswer(name, model.pack.version, request.id, outputs), coding)


class PictureQuery(BaseModel):
    """``binary_data_output``: tensors are raw, as where an infer request asks for that."""

    binary_data_output: bool = False


async def infer_picture(
    asked: Asked, name: str, query: PictureQuery, version: str | None = None
) -> Pieces:
    """Run the model on the image (raw body, or the file of a multipart form): all outputs, as `/infer`."""
    coding = answer_coding(asked.headers)
    async with Inference(asked.context, asked.exchange, name, version) as model:
        async with model.reading():
            picture = await read_picture(asked, model, "infer")
        manifest, is_raw = model.manifest, query.binary_data_output
        wanted = all_wanted(manifest.outputs, is_raw)
        outputs = await model.compute(
            picture,
            lambda found: kept_outputs(wanted, found, manifest, is_raw and coding == "identity"),
        )
        return _sent(ModelAnswer(name, model.pack.version, None, outputs), coding)


def _sent(answer: ModelAnswer, coding: Coding) -> Pieces:
    body = Body(answer)
    return Pieces(body.text, body.raw, body.raw_bytes, body.is_mixed, coding)


def kept_outputs(
    asked: Sequence[WantedOutput], outputs: Arrays, manifest: Manifest, is_raw: bool
) -> Kept[list[Output]]:
    """Return what is ``asked`` for of the ``outputs``, in that order; ``is_raw``: as Kept has it."""
    kept, n_bytes = [], 0
    for name, is_binary, n_classes in asked:
        array = outputs[name].copy()  # the next sweep overwrites it
        if n_classes:
            array = best_classes(array, n_classes, _labels(name, manifest))
        kept.append(Output(name, array, is_binary))
        n_bytes += array_bytes(array)
    return Kept(kept, n_bytes, is_raw)


def _labels(output: str, manifest: Manifest) -> Sequence[str]:
    found = manifest.classification
    return found.labels if found is not None and found.output == output else ()
