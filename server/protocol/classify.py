"""Classification of an image: photograph in, labels out."""

from typing import Annotated, Any

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, Field

from models.classification import top_classes
from models.packs.pack import Pack
from pipeline.execution.given import Arrays
from pipeline.execution.statistics import SweepStatistics
from server.errors import ServiceError
from server.protocol.pictures import Picture, read_picture
from server.protocol.routing import Asked
from server.protocol.serving import Kept, Parts, kept_tensors, run_model
from server.requests.tensors import Check


class ClassifyQuery(BaseModel):
    """``top_k``: classes, best first."""

    top_k: Annotated[int, Field(ge=1)] = 5


async def classify(
    asked: Asked, name: str, query: ClassifyQuery, version: str | None = None
) -> dict[str, Any]:
    """Name what is in the image (raw body, or the file of a multipart form), best label first."""

    async def read(pack: Pack, _: Check) -> Picture:
        return await read_picture(asked, name, pack, _fault(name, pack))

    async def respond(
        picture: Picture,
        kept: dict[str, NDArray[Any]],
        statistics: SweepStatistics,
        pack: Pack,
    ) -> dict[str, Any]:
        classification = pack.manifest.classification
        assert classification is not None
        scores = kept[classification.output]
        if not np.isfinite(scores).all():
            raise ServiceError(f"output {classification.output!r} has NaN or infinite scores")
        best = top_classes(classification, scores, query.top_k)
        return {
            "model_name": name,
            "model_version": pack.version,
            "predictions": [item.as_dict() for item in best],
            "delay_ms": statistics.delay_seconds * 1e3,
        }

    return await run_model(
        asked.context, asked.exchange, name, version, Parts(read, _scores, respond)
    )


def _scores(picture: Picture, outputs: Arrays, pack: Pack) -> Kept[dict[str, NDArray[Any]]]:
    classification = pack.manifest.classification
    assert classification is not None
    return kept_tensors({classification.output: outputs[classification.output]})


def _fault(name: str, pack: Pack) -> str | None:
    manifest = pack.manifest
    if manifest.detection is not None:
        return f"model {name!r} does not classify images: it detects objects, use :detect"
    if manifest.preprocess is None or manifest.classification is None:
        return (
            f"model {name!r} does not classify images: it was compiled without "
            "--preprocess, or its output is not a vector of scores"
        )
    return None
