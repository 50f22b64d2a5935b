"""How much memory requests to a model need, and how large the pool for all requests is.

Pure figures of manifests; docs/architecture.md, "What requests may take".
"""

from collections.abc import Iterable, Sequence
from typing import NamedTuple, Self

import numpy as np

from models.packs.manifest import Array, Manifest
from server.memory.request_memory import capacity_for

#: Text and values of a body between its arrival and its arrays, and pieces of an answer.
CODEC_BYTES = 512 << 10
#: The same of a short body.
SHORT_CODEC_BYTES = 64 << 10
# For pictures, file and pixels: a quarter of the budget, but from 256 to a thousand kilopixels.
_PICTURE_BYTES = (1 << 20, 4 << 20)
_PICTURE_SHARE = 4
#: Bytes a value that turning a picture into a tensor takes, the tensor included.
_PREPROCESS_BYTES = 11
#: Of the budget, and at most so much, where the settings do not say.
_SHARE = 8
_MOST_BYTES = 64 << 20


def tensor_bytes(ports: Iterable[Array]) -> int:
    """Return the bytes of tensors for ``ports``; loose ones are unknown and count nothing."""
    return sum(port.n_bytes for port in ports)


def infer_bytes(manifest: Manifest) -> int:
    """Return what one infer request holds from its body on: inputs, outputs, and what decodes them."""
    return tensor_bytes((*manifest.inputs, *manifest.outputs)) + CODEC_BYTES


def short_infer_bytes(manifest: Manifest) -> int:
    """Return what an infer request holds whose body is so short that it came before anything was held."""
    return tensor_bytes((*manifest.inputs, *manifest.outputs)) + SHORT_CODEC_BYTES


def preprocess_bytes(manifest: Manifest) -> int:
    """Return what turning a decoded picture into the input of the model takes; 0 where none comes."""
    if manifest.preprocess is None:
        return 0
    return int(np.prod(manifest.preprocess.shape)) * _PREPROCESS_BYTES


class Need(NamedTuple):
    """What requests to one model take: to be answered from tensors; to make a picture a tensor, or 0."""

    infer_bytes: int
    preprocess_bytes: int

    @classmethod
    def of(cls, manifest: Manifest) -> Self:
        """Return what requests to the model of ``manifest`` take."""
        return cls(infer_bytes(manifest), preprocess_bytes(manifest))

    @property
    def tight_bytes(self) -> int:
        """What one request takes at least; a picture and its like are gone before there are outputs."""
        return capacity_for(max(self))

    def least_bytes(self, budget_bytes: int) -> int:
        """Return the smallest pool that is chosen: a request fits, a photograph if the model takes any."""
        fewest, most = _PICTURE_BYTES
        picture = min(max(budget_bytes // _PICTURE_SHARE, fewest), most)
        return max(
            self.infer_bytes, self.preprocess_bytes + picture if self.preprocess_bytes else 0
        )


def pool_bytes(budget_bytes: int, needs: Iterable[Need]) -> int:
    """Return the size of the pool where no setting does: an eighth of the budget, or what is needed."""
    share = min(budget_bytes // _SHARE, _MOST_BYTES)
    least = max((need.least_bytes(budget_bytes) for need in needs), default=CODEC_BYTES)
    return max(share, capacity_for(least))


def smallest_budget(model_bytes: int, needs: Sequence[Need]) -> int:
    """Return the smallest budget in which models that take ``model_bytes`` and their requests fit."""
    total = model_bytes + pool_bytes(0, needs)
    while (pool := pool_bytes(total, needs)) > total - model_bytes:
        total = model_bytes + pool
    return total
