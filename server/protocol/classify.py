"""Classification of an image: photograph in, labels out."""

from typing import Annotated, Any

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, Field

from models.classification import top_classes
from models.packs.manifest import Manifest
from server.errors import NotFiniteError
from server.protocol.pictures import read_picture
from server.protocol.routing import Asked
from server.protocol.serving import Inference, Kept


class ClassifyQuery(BaseModel):
    """``top_k``: classes, best first."""

    top_k: Annotated[int, Field(ge=1)] = 5


async def classify(
    asked: Asked, name: str, query: ClassifyQuery, version: str | None = None
) -> dict[str, Any]:
    """Name what is in the image (raw body, or the file of a multipart form), best label first."""
    async with Inference(asked.context, asked.exchange, name, version) as model:
        async with model.reading():
            picture = await read_picture(asked, model, "classify", _fault(name, model.manifest))
        classification = model.manifest.classification
        assert classification is not None
        output = classification.output
        scores = await model.compute(picture, lambda found: _kept(found[output]))
        if not np.isfinite(scores).all():
            raise NotFiniteError(
                f"output {output!r} has NaN or infinite scores; infer gives them as binary data"
            )
        best = top_classes(classification, scores, query.top_k)
        return {
            "model_name": name,
            "model_version": model.pack.version,
            "predictions": [item.as_dict() for item in best],
            "delay_ms": model.delay_ms,
        }


def _kept(scores: NDArray[Any]) -> Kept[NDArray[Any]]:
    return Kept(scores.copy(), scores.nbytes)


def _fault(name: str, manifest: Manifest) -> str | None:
    if manifest.detection is not None:
        return f"model {name!r} does not classify images: it detects objects, use :detect"
    if manifest.segmentation is not None:
        return f"model {name!r} does not classify images: it segments them, use :segment"
    if manifest.preprocess is None or manifest.classification is None:
        return (
            f"model {name!r} does not classify images: it was compiled without "
            "--preprocess, or its output is not a vector of scores"
        )
    return None
