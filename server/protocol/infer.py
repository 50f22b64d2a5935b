"""Inference on tensors: the Open Inference Protocol's infer endpoint and its extensions."""

from collections.abc import Sequence

from starlette.responses import Response

from models.packs.manifest import Manifest
from models.packs.pack import Pack
from pipeline.execution.given import Arrays
from pipeline.execution.statistics import SweepStatistics
from server.codec import Answer, Body, Framing, Output, Request, Wanted, answer_coding
from server.codec.classes import best_classes
from server.protocol.pieces import Sent, respond_in_pieces
from server.protocol.routing import Asked
from server.protocol.serving import Kept, Parts, array_bytes, run_model
from server.requests.tensors import Check, read_tensors


async def infer(asked: Asked, name: str, version: str | None = None) -> Response:
    """Run the model on the tensors of the body."""
    context, exchange, headers = asked.context, asked.exchange, asked.scope["headers"]
    coding = answer_coding(headers)

    async def read(pack: Pack, check: Check) -> Request:
        return await read_tensors(exchange, Framing.of(headers), pack.manifest, check)

    # What is quoted is not looked up at every request.
    def keep(asked: Request, outputs: Arrays, pack: Pack) -> "Kept[list[Output]]":
        is_raw = coding == "identity" and all(wanted.is_binary for wanted in asked.wanted)
        return kept_outputs(asked, outputs, pack.manifest, is_raw)

    async def respond(
        asked: Request, outputs: "list[Output]", statistics: SweepStatistics, pack: Pack
    ) -> Response:
        body = Body(Answer(name, pack.version, asked.id, outputs))
        return respond_in_pieces(Sent(body.text, body.raw, body.raw_bytes, body.is_mixed, coding))

    parts = Parts(read, keep, respond, names_timeout=True)
    return await run_model(context, exchange, name, version, parts)


def kept_outputs(
    asked: Request, outputs: Arrays, manifest: Manifest, is_raw: bool
) -> Kept[list[Output]]:
    """Return what is ``asked`` for of the ``outputs``, in that order; ``is_raw``: as Kept has it."""
    kept = [_kept(wanted, outputs, manifest) for wanted in asked.wanted]
    return Kept(kept, sum([array_bytes(output.array) for output in kept]), is_raw)


def _kept(wanted: Wanted, outputs: Arrays, manifest: Manifest) -> Output:
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
