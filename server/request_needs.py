"""How much memory requests to a model need, and how large the pool for all requests is.

Pure figures of manifests; docs/architecture.md, "What requests may take".
"""

from collections.abc import Iterable, Sequence

import numpy as np

from models.manifest import Array, Manifest

#: Text and values of a body between its arrival and its arrays, and pieces of an answer.
CODEC_BYTES = 512 << 10
#: A photograph of a megapixel: what is left for pictures in the smallest pool.
PICTURE_BYTES = 4 << 20
#: Bytes a value that turning a picture into a tensor takes, the tensor included.
_PREPROCESS_BYTES = 16
#: Of the budget, and at most so much, where the settings do not say.
_SHARE = 8
_MOST_BYTES = 64 << 20


def tensor_bytes(ports: Iterable[Array]) -> int:
    """Return the bytes of tensors for ``ports``; loose ones are unknown and count nothing."""
    return sum(port.n_bytes for port in ports)


def infer_bytes(manifest: Manifest) -> int:
    """Return what one infer request holds from its body on: inputs, outputs, and what decodes them."""
    return tensor_bytes((*manifest.inputs, *manifest.outputs)) + CODEC_BYTES


def preprocess_bytes(manifest: Manifest) -> int:
    """Return what turning a decoded picture into the input of the model takes; 0 where none comes."""
    if manifest.preprocess is None:
        return 0
    return int(np.prod(manifest.preprocess.shape)) * _PREPROCESS_BYTES


def tight_bytes(manifest: Manifest) -> int:
    """Return what a request to the model takes at least, however small its picture."""
    return infer_bytes(manifest) + preprocess_bytes(manifest)


def least_bytes(manifest: Manifest) -> int:
    """Return the smallest pool chosen for a model: a request fits, and a photograph if it takes any."""
    return tight_bytes(manifest) + (PICTURE_BYTES if manifest.preprocess else 0)


def pool_bytes(budget_bytes: int, needs: Iterable[int]) -> int:
    """Return the size of the pool where the settings do not say.

    An eighth of the budget (at most 64 MiB), or the largest of ``needs``: ``least_bytes`` of each model.
    """
    return max(min(budget_bytes // _SHARE, _MOST_BYTES), CODEC_BYTES, *needs)


def smallest_budget(model_bytes: int, needs: Sequence[int]) -> int:
    """Return the smallest budget in which models that take ``model_bytes`` and their requests fit."""
    total = model_bytes + pool_bytes(0, needs)
    while total - pool_bytes(total, needs) < model_bytes:
        total = model_bytes + pool_bytes(total, needs) + 1
    return total
