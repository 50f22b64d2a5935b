"""Networks that give vectors: the recipe of their output, and the vector made of it."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from models.records import PositiveInt, Record
from models.toml_files import read_recipe

Floats = NDArray[np.float32]
Pooling = Literal["mean", "cls", "last", "max", "none"]
_DTYPES = ("float32", "float16", "float64")
#: As sentence-transformers has it: a shorter vector is not made longer.
_MIN_NORM = 1e-12


@dataclass(frozen=True, slots=True, kw_only=True)
class Embedding(Record):
    """How ``output`` becomes a vector.

    It is a vector for each token, [1, tokens, numbers], of which ``pooling`` makes one: their mean, the
    first ("cls") or last of the text, the largest of each number. Or it is one vector ("none"), with axes
    of one around it. ``dimensions``: so many numbers of it, the first, are its vector; None: all.
    ``matryoshka``: how many of them a request may ask for instead. ``normalise``: its length is 1 then.
    """

    output: str
    pooling: Pooling = "none"
    normalise: bool = False
    dimensions: PositiveInt | None = None
    matryoshka: tuple[PositiveInt, ...] = ()

    def width(self, shape: Sequence[int]) -> int:
        """Return how many numbers a vector has of an output of this ``shape``."""
        return self.dimensions or (math.prod(shape) if self.pooling == "none" else shape[-1])

    def vector(
        self,
        output: NDArray[Any],
        mask: NDArray[np.bool_] | None = None,
        dimensions: int | None = None,
    ) -> Floats:
        """Return the vector of ``output``, float32[numbers], in memory of its segment.

        ``mask``: which tokens are of a text, one at least; None: all. ``dimensions``: of this request.
        """
        row = np.array(self._pooled(output, mask)[: dimensions or self.dimensions], np.float32)
        if self.normalise:
            row /= max(float(np.linalg.norm(row)), _MIN_NORM)
        return row

    def _pooled(self, output: NDArray[Any], mask: NDArray[np.bool_] | None) -> NDArray[Any]:
        if self.pooling == "none":
            return output.reshape(-1)
        tokens: NDArray[Any] = output[0]
        indices = np.arange(len(tokens)) if mask is None else np.flatnonzero(mask)
        if self.pooling in ("cls", "last"):
            first_or_last: NDArray[Any] = tokens[indices[0 if self.pooling == "cls" else -1]]
            return first_or_last
        # A text's tokens lie one behind the other: a view.
        segment: NDArray[Any] = tokens[indices[0] : indices[-1] + 1]
        pooled: NDArray[Any] = (
            segment.mean(axis=0, dtype=np.float32)
            if self.pooling == "mean"
            else segment.max(axis=0)
        )
        return pooled


def embedding_fault(
    embedding: Embedding, outputs: Mapping[str, tuple[str, tuple[int, ...]]]
) -> str | None:
    """Return why none of ``outputs`` (name: dtype, shape) is what the recipe says; None: one is."""
    where = f"embedding: output {embedding.output!r}"
    if embedding.output not in outputs:
        return f"{where}: no such output; there are {', '.join(map(repr, outputs))}"
    dtype, shape = outputs[embedding.output]
    is_static = min(shape, default=0) > 0 and shape[0] == 1
    if embedding.pooling == "none":
        expected, is_right = (
            "a vector: floats [1, numbers]",
            is_static and math.prod(shape) == max(shape),
        )
    else:
        expected, is_right = (
            "a vector a token: floats [1, tokens, numbers]",
            is_static and len(shape) == 3,
        )
    if dtype not in _DTYPES or not is_right:
        return f"{where} is {dtype}{list(shape)}; pooling {embedding.pooling!r} is of {expected}"
    all_numbers = math.prod(shape) if embedding.pooling == "none" else shape[-1]
    for count in (embedding.dimensions or 1, *embedding.matryoshka):
        if count > all_numbers:
            return f"{where}: {count} dimensions, of a vector of {all_numbers}"
    return None


def read_embedding(path: Path) -> Embedding:
    """Read a recipe from a TOML file.

    Raises:
        ModelError: the file is missing, is not TOML, or a field is unknown or out of range.
    """
    return read_recipe(path, Embedding)
