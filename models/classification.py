"""From a vector of scores to labels."""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from models.packs.records.ports import Classification


@dataclass(frozen=True)
class ClassScore:
    """One class: its index in the output, its label ("class 12" if it has no name), 0..1."""

    index: int
    label: str
    probability: float

    def as_dict(self) -> dict[str, Any]:
        """Return the fields as responses show them."""
        return {"label": self.label, "probability": self.probability, "index": self.index}


def top_classes(
    classification: Classification, scores: NDArray[Any], count: int
) -> list[ClassScore]:
    """Return the ``count`` most probable classes, best first; ties by index."""
    flat = scores.ravel()
    if classification.scores == "logits":
        powers = np.exp(flat.astype(np.float64) - flat.max())
        flat = powers / powers.sum()
    order = np.argsort(-flat, kind="stable")[:count]
    labels = classification.labels
    return [
        ClassScore(int(i), labels[i] if labels else f"class {i}", float(flat[i]))
        for i in order.tolist()
    ]
