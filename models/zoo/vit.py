"""Vision transformers (Dosovitskiy et al. 2021) as timm defines them."""

import math

import onnx

from models.zoo.builder import SIGNED, SkeletonBuilder, ZooTensor

PATCH = 16
_HEAD = 64  # numbers of a token that one attention head looks at
_EXPANSION = 4


def vit(width: int, depth: int, resolution: int) -> onnx.ModelProto:
    """Return a transformer of ``depth`` blocks on tokens of ``width`` numbers, a head for each 64 of them.

    A token is a patch of 16 x 16 pixels, and one more the class; output "logits" [1, 1000].
    """
    b = SkeletonBuilder("vit", resolution, SIGNED)
    x = _tokens(b, b.conv(b.image, width, PATCH, PATCH, bias=True, pads=(0, 0, 0, 0)))
    for _ in range(depth):
        x = b.add(x, _attention(b, b.layer_norm(x)))
        x = b.add(x, b.dense(b.gelu(b.dense(b.layer_norm(x), _EXPANSION * width)), width))
    return b.model(b.linear(b.take(b.layer_norm(x), 0, axis=1), 1000))


def _tokens(b: SkeletonBuilder, patches: ZooTensor) -> ZooTensor:
    """Return patches [1, width, rows, columns] as rows, the class first, with what says where they were."""
    width = patches.channels
    rows = b.transpose(b.reshape(patches, 1, width, -1), 0, 2, 1)
    x = b.concat(b.weight("class", (1, 1, width)), rows)
    return b.add(x, b.weight("position", x.shape))


def _attention(b: SkeletonBuilder, x: ZooTensor) -> ZooTensor:
    """Let each token sum up what all tokens say, weighed by how well they match."""
    count, width = x.shape[1:]
    heads = max(width // _HEAD, 1)
    parts = b.reshape(b.dense(x, 3 * width), 1, count, 3, heads, width // heads)
    three = b.split(b.transpose(parts, 2, 0, 3, 1, 4), (1, 1, 1), axis=0)
    query, key, value = (b.squeeze(part, 0) for part in three)
    # Both factors are scaled, as exporters write it: no product grows large on the way.
    scale = b.constant("scale", math.sqrt(1 / math.sqrt(width // heads)))
    match = b.matmul(b.mul(query, scale), b.mul(b.transpose(key, 0, 1, 3, 2), scale))
    seen = b.matmul(b.softmax(match, axis=-1), value)
    together = b.reshape(b.transpose(seen, 0, 2, 1, 3), 1, count, width)
    return b.dense(together, width)
