"""ConvNeXt (Liu et al. 2022) as torchvision defines it: channels come last inside a block."""

from collections.abc import Sequence

import onnx

from models.zoo.builder import IMAGENET, SkeletonBuilder, ZooTensor

_LAST, _FIRST = (0, 2, 3, 1), (0, 3, 1, 2)  # channels last, and back
_EXPANSION = 4


def convnext(depths: Sequence[int], widths: Sequence[int], resolution: int) -> onnx.ModelProto:
    """Return a ConvNeXt for 1000 classes; output "logits" [1, 1000].

    A stage has as many blocks as ``depths`` says, on as many channels as ``widths``.
    """
    b = SkeletonBuilder("convnext", resolution, IMAGENET)
    x = _norm(b, b.conv(b.image, widths[0], 4, 4, bias=True, pads=(0, 0, 0, 0)))
    for stage, (depth, width) in enumerate(zip(depths, widths, strict=True)):
        if stage:
            x = b.conv(_norm(b, x), width, 2, 2, bias=True, pads=(0, 0, 0, 0))
        for _ in range(depth):
            x = _block(b, x)
    return b.model(b.linear(b.flatten(_norm(b, b.global_pool(x))), 1000))


def _norm(b: SkeletonBuilder, x: ZooTensor) -> ZooTensor:
    """Add a layer norm over the channels of an image."""
    return b.transpose(b.layer_norm(b.transpose(x, *_LAST)), *_FIRST)


def _block(b: SkeletonBuilder, x: ZooTensor) -> ZooTensor:
    y = b.transpose(b.conv(x, x.channels, 7, groups=x.channels, bias=True), *_LAST)
    y = b.gelu(b.dense(b.layer_norm(y), _EXPANSION * x.channels))
    y = b.transpose(b.dense(y, x.channels), *_FIRST)
    label = b.next_label("Transpose", "scale")
    return b.add(b.mul(b.weight(f"{label}.weight", (x.channels, 1, 1)), y), x)
