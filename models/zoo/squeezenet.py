"""SqueezeNet (Iandola et al. 2016), versions 1.0 and 1.1, as torchvision defines them."""

import onnx

from models.zoo.builder import IMAGENET, SkeletonBuilder, ZooTensor

# Squeezed and expanded channels of the fire modules; a pool stands before those in _POOLED.
_FIRES = (
    *((16, 64), (16, 64), (32, 128), (32, 128)),
    *((48, 192), (48, 192), (64, 256), (64, 256)),
)
_POOLED = {"1.0": (0, 3, 7), "1.1": (0, 2, 4)}


def _fire(b: SkeletonBuilder, x: ZooTensor, squeezed: int, expanded: int) -> ZooTensor:
    x = b.relu(b.conv(x, squeezed, 1, bias=True))
    return b.concat(*(b.relu(b.conv(x, expanded, kernel, bias=True)) for kernel in (1, 3)))


def squeezenet(version: str, resolution: int) -> onnx.ModelProto:
    """Return SqueezeNet ``version`` ("1.0" or "1.1") for 1000 classes; output "logits" [1, 1000]."""
    b = SkeletonBuilder(f"squeezenet{version}", resolution, IMAGENET)
    channels, kernel = (96, 7) if version == "1.0" else (64, 3)
    x = b.relu(b.conv(b.image, channels, kernel, 2, bias=True, pads=(0, 0, 0, 0)))
    for index, (squeezed, expanded) in enumerate(_FIRES):
        if index in _POOLED[version]:
            x = b.max_pool(x, 3, 2, ceil=True)
        x = _fire(b, x, squeezed, expanded)
    x = b.relu(b.conv(x, 1000, 1, bias=True))
    return b.model(b.flatten(b.global_pool(x)))
