"""MobileNetV3-large (Howard et al. 2019) as torchvision defines it."""

from dataclasses import dataclass

import onnx

from models.zoo.builder import IMAGENET, SkeletonBuilder, ZooTensor


@dataclass(frozen=True)
class _Block:
    """An inverted residual block; ``weighed``: channels are, ``hard``: HardSwish instead of ReLU."""

    kernel: int
    wide: int
    channels: int
    weighed: bool
    hard: bool
    stride: int


_LARGE = (
    _Block(3, 16, 16, False, False, 1),
    _Block(3, 64, 24, False, False, 2),
    _Block(3, 72, 24, False, False, 1),
    _Block(5, 72, 40, True, False, 2),
    _Block(5, 120, 40, True, False, 1),
    _Block(5, 120, 40, True, False, 1),
    _Block(3, 240, 80, False, True, 2),
    _Block(3, 200, 80, False, True, 1),
    _Block(3, 184, 80, False, True, 1),
    _Block(3, 184, 80, False, True, 1),
    _Block(3, 480, 112, True, True, 1),
    _Block(3, 672, 112, True, True, 1),
    _Block(5, 672, 160, True, True, 2),
    _Block(5, 960, 160, True, True, 1),
    _Block(5, 960, 160, True, True, 1),
)
_EPSILON = 1e-3


def mobilenet_v3_large(resolution: int) -> onnx.ModelProto:
    """Return MobileNetV3-large for 1000 classes; output "logits" [1, 1000]."""
    b = SkeletonBuilder("mobilenetv3-large", resolution, IMAGENET)
    x = b.hard_swish(b.norm(b.conv(b.image, 16, 3, 2), _EPSILON))
    for block in _LARGE:
        x = _block(b, x, block)
    x = b.hard_swish(b.norm(b.conv(x, 960, 1), _EPSILON))
    x = b.hard_swish(b.linear(b.flatten(b.global_pool(x)), 1280))
    return b.model(b.linear(x, 1000))


def _block(b: SkeletonBuilder, x: ZooTensor, block: _Block) -> ZooTensor:
    act = b.hard_swish if block.hard else b.relu
    wide, y = block.wide, x
    if wide != x.channels:
        y = act(b.norm(b.conv(y, wide, 1), _EPSILON))
    y = b.norm(b.conv(y, wide, block.kernel, block.stride, groups=wide), _EPSILON)
    y = _squeeze_excite(b, act(y)) if block.weighed else act(y)
    y = b.norm(b.conv(y, block.channels, 1), _EPSILON)
    return b.add(x, y) if block.stride == 1 and block.channels == x.channels else y


def _squeeze_excite(b: SkeletonBuilder, x: ZooTensor) -> ZooTensor:
    """Weigh the channels of ``x`` by what all of the image says about them."""
    y = b.relu(b.conv(b.global_pool(x), _eighths(x.channels // 4), 1, bias=True))
    return b.mul(b.hard_sigmoid(b.conv(y, x.channels, 1, bias=True)), x)


def _eighths(channels: int) -> int:
    """Return the multiple of 8 nearest to ``channels``, and not below nine tenths of it."""
    nearest = max(8, (channels + 4) // 8 * 8)
    return nearest + 8 if 10 * nearest < 9 * channels else nearest
