"""Inference on tensors: the Open Inference Protocol's infer endpoint and its extensions."""

from collections.abc import Sequence

from models.packs.manifest import Manifest
from pipeline.execution.given import Arrays
from server.codec import (
    Body,
    Framing,
    ModelAnswer,
    ModelRequest,
    Output,
    WantedOutput,
    answer_coding,
)
from server.codec.classes import best_classes
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
            request, lambda found: kept_outputs(request, found, model.manifest, is_raw)
        )
        body = Body(ModelAnswer(name, model.pack.version, request.id, outputs))
        return Pieces(body.text, body.raw, body.raw_bytes, body.is_mixed, coding)


def kept_outputs(
    asked: ModelRequest, outputs: Arrays, manifest: Manifest, is_raw: bool
) -> Kept[list[Output]]:
    """Return what is ``asked`` for of the ``outputs``, in that order; ``is_raw``: as Kept has it."""
    kept = [_kept(wanted, outputs, manifest) for wanted in asked.wanted]
    return Kept(kept, sum([array_bytes(output.array) for output in kept]), is_raw)


def _kept(wanted: WantedOutput, outputs: Arrays, manifest: Manifest) -> Output:
    """Return what is asked for of the ``outputs``, which the next sweep overwrites."""
    array = outputs[wanted.name]
    if wanted.n_classes:
        array = best_classes(array, wanted.n_classes, _labels(wanted.name, manifest))
    else:
        array = array.copy()
    return Output(wanted.name, array, wanted.is_binary)


def _labels(output: str, manifest: Manifest) -> Sequence[str]:
    found = manifest.classification
    return found.labels if found is not None and found.output == output else ()
