"""Launches of kernels/depthwise.cu."""

from pipeline.devices.cuda.call import Call, Pointer
from pipeline.devices.cuda.calls.convolutions.geometry import (
    Convolution,
    Epilogue,
    blocks,
    with_epilogue,
)

_THREADS = 128
#: Outputs of a thread, below each other, in the kernels for one size of window.
_STRIP = 4
_SIZES = (3, 5)
_STRIDES = (1, 2)


def depthwise(shape: Convolution, x: Pointer, w: Pointer, y: Pointer, epilogue: Epilogue) -> Call:
    """Return the launch of a convolution with one channel for each group; sizes as in ``shape``.

    Raises:
        ValueError: groups have more channels.
    """
    if shape.channels != shape.groups:
        raise ValueError(f"not depthwise: {shape}")
    size, stride = shape.kernel[0], shape.strides[0]
    special = (
        shape.kernel == (size, size)
        and shape.strides == (stride, stride)
        and shape.dilations == (1, 1)
        and size in _SIZES
        and stride in _STRIDES
    )
    name = f"depthwise_{size}x{size}_s{stride}" if special else "depthwise_any"
    strips = -(-shape.out_height // _STRIP) if special else shape.out_height
    threads = shape.batch * shape.filters * strips * shape.out_width
    arguments = with_epilogue((x, w, y), epilogue, (shape.numbers(), shape.batch))
    return Call("depthwise", name, blocks(threads, _THREADS), _THREADS, arguments)
