"""What Darknet computes, in NumPy and float64: an interpreter of cfg and weights files.

It shares no code with the importer: its own parser, its own reading of the weights, one function a
section, written from Darknet's (AlexeyAB's; shortcuts of other sizes: pjreddie's). It trusts its input.
"""

import struct
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

# The oracle's own reading of Darknet's files; it trusts what it reads.

Array = NDArray[np.float64]
Options = dict[str, str]
Sections = list[tuple[str, Options]]


def parse(text: str) -> Sections:
    """Return kind and options of each section; the first of equal keys counts."""
    sections: Sections = []
    for line in text.lstrip("\ufeff").splitlines():
        bare = "".join(line.split())
        if bare.startswith("["):
            sections.append((bare.strip("[]"), {}))
        elif bare and bare[0] not in "#;":
            key, _, value = bare.partition("=")
            sections[-1][1].setdefault(key, value)
    return sections


class Numbers:
    """The numbers of a weights file, taken one array after the other."""

    def __init__(self, content: bytes) -> None:
        major, minor, _ = struct.unpack_from("<iii", content)
        wide = major * 10 + minor >= 2 and major < 1000 and minor < 1000
        self.transposed = major > 1000 or minor > 1000
        self._left = np.frombuffer(content, "<f4", offset=20 if wide else 16)

    def take(self, *shape: int) -> Array:
        count = int(np.prod(shape))
        part, self._left = self._left[:count], self._left[count:]
        return part.astype(np.float64).reshape(shape)

    @property
    def left(self) -> int:
        return self._left.size


# Darknet's activations (activations.h), in NumPy.


def logistic(x: Array) -> Array:
    result: Array = 1 / (1 + np.exp(-x))
    return result


def gelu(x: Array) -> Array:
    result: Array = 0.5 * x * (1 + np.tanh(0.797885 * x + 0.035677 * x**3))
    return result


def elu(x: Array) -> Array:
    return np.where(x >= 0, x, np.expm1(np.minimum(x, 0)))


def plse(x: Array) -> Array:
    return np.where(x < -4, 0.01 * (x + 4), np.where(x > 4, 0.01 * (x - 4) + 1, 0.125 * x + 0.5))


def lhtan(x: Array) -> Array:
    return np.where(x < 0, 0.001 * x, np.where(x > 1, 0.001 * (x - 1) + 1, x))


def stair(x: Array) -> Array:
    n = np.floor(x)
    half = np.floor(x / 2)
    return np.where(n % 2 == 0, half, x - n + half)


ACTIVATIONS: dict[str, Callable[[Array], Array]] = {
    "linear": lambda x: x,
    "logistic": logistic,
    "loggy": lambda x: 2 * logistic(x) - 1,
    "relu": lambda x: x * (x > 0),
    "relu6": lambda x: np.clip(x, 0, 6),
    "elu": elu,
    "selu": lambda x: 1.0507 * np.where(x >= 0, x, 1.6732 * elu(x)),
    "gelu": gelu,
    "relie": lambda x: np.where(x > 0, x, 0.01 * x),
    "ramp": lambda x: x * (x > 0) + 0.1 * x,
    "hardtan": lambda x: np.clip(x, -1, 1),
    "revleaky": lambda x: np.where(x > 0, x, 0.1 * x),
    "leaky": lambda x: np.where(x > 0, x, 0.1 * x),
    "tanh": np.tanh,
    "swish": lambda x: x * logistic(x),
    "mish": lambda x: x * np.tanh(np.logaddexp(0, x)),
    "plse": plse,
    "lhtan": lhtan,
    "stair": stair,
    "hard_mish": lambda x: np.where(x > 0, x, np.where(x > -2, x * x / 2 + x, 0)),
}


@dataclass
class State:
    """What a section may look at: the outputs so far (c, h, w), the image, and the weights.

    ``arrays``: biases, batch normalisation and weights of the convolutions so far.
    """

    numbers: Numbers
    image: Array
    outputs: list[Array] = field(default_factory=list)
    arrays: dict[int, tuple[Array, Array | None, Array]] = field(default_factory=dict)

    def previous(self) -> Array:
        return self.outputs[-1] if self.outputs else self.image

    def layer(self, text: str) -> Array:
        index = int(text)
        return self.outputs[index if index >= 0 else len(self.outputs) + index]

    def layers(self, text: str) -> list[Array]:
        return [self.layer(part) for part in text.split(",")]


def activate(x: Array, options: Options, default: str) -> Array:
    return ACTIVATIONS[options.get("activation", default)](x)


def softmax(x: Array, axis: int) -> Array:
    e = np.exp(x - x.max(axis, keepdims=True))
    result: Array = e / e.sum(axis, keepdims=True)
    return result


def number(options: Options, key: str, default: int) -> int:
    return int(options.get(key, default))


def strides(options: Options, default: int) -> tuple[int, int]:
    stride = number(options, "stride", default)
    return number(options, "stride_y", stride), number(options, "stride_x", stride)


def windows(x: Array, size: int, stride: tuple[int, int], dilation: int = 1) -> Array:
    """Return (c, rows, columns, size, size) of a padded ``x`` (c, h, w)."""
    reach = dilation * (size - 1) + 1
    view = np.lib.stride_tricks.sliding_window_view(x, (reach, reach), axis=(1, 2))
    return view[:, :: stride[0], :: stride[1], ::dilation, ::dilation]


def convolutional(options: Options, state: State) -> Array:
    x = state.previous()
    filters, size, groups = (number(options, key, 1) for key in ("filters", "size", "groups"))
    dilation = number(options, "dilation", 1) if size > 1 else 1
    pad = size // 2 if number(options, "pad", 0) else number(options, "padding", 0)
    if "share_index" in options:
        shared = int(options["share_index"])
        arrays = state.arrays[shared if shared >= 0 else len(state.outputs) + shared]
    else:
        arrays = (
            state.numbers.take(filters),
            state.numbers.take(3, filters) if number(options, "batch_normalize", 0) else None,
            state.numbers.take(groups, filters // groups, len(x) // groups * size * size),
        )
    state.arrays[len(state.outputs)] = arrays
    biases, norm, weights = arrays
    margin = (pad * dilation, pad * dilation)
    padded = np.pad(x, ((0, 0), margin, margin))
    seen = windows(padded, size, strides(options, 1), dilation)
    rows, columns = seen.shape[1:3]
    unrolled = seen.transpose(0, 3, 4, 1, 2).reshape(groups, weights.shape[2], rows * columns)
    y = (weights @ unrolled).reshape(filters, rows, columns)
    if norm is not None:
        scales, mean, variance = norm[:, :, None, None]
        y = (y - mean) / np.sqrt(variance + 0.00001) * scales
    return activate(y + biases[:, None, None], options, "logistic")


def connected(options: Options, state: State) -> Array:
    x = state.previous().reshape(-1)
    output = number(options, "output", 1)
    biases = state.numbers.take(output)
    if state.numbers.transposed:
        weights = state.numbers.take(x.size, output).T
    else:
        weights = state.numbers.take(output, x.size)
    y = weights @ x
    if number(options, "batch_normalize", 0):
        scales, mean, variance = state.numbers.take(3, output)
        y = (y - mean) / np.sqrt(variance + 0.00001) * scales
    return activate(y + biases, options, "logistic").reshape(output, 1, 1)


def maxpool(options: Options, state: State) -> Array:
    x = state.previous()
    if number(options, "maxpool_depth", 0):
        kept = number(options, "out_channels", 1)
        return np.stack([x[first::kept].max(0) for first in range(kept)])
    down, across = strides(options, 1)
    size = number(options, "size", number(options, "stride", 1))
    padding = number(options, "padding", size - 1)
    rows, columns = (
        (n + padding - size) // s + 1 for n, s in zip(x.shape[1:], (down, across), strict=True)
    )
    first = padding // 2
    reach = ((rows - 1) * down + size, (columns - 1) * across + size)
    wide = np.full(
        (len(x), first + x.shape[1] + padding + size, first + x.shape[2] + padding + size), -np.inf
    )
    wide[:, first : first + x.shape[1], first : first + x.shape[2]] = x
    pooled: Array = windows(wide[:, : reach[0], : reach[1]], size, (down, across)).max((3, 4))
    return pooled


def route(options: Options, state: State) -> Array:
    groups, chosen = number(options, "groups", 1), number(options, "group_id", 0)
    return np.concatenate([np.split(x, groups)[chosen] for x in state.layers(options["layers"])])


def route_lhalf(options: Options, state: State) -> Array:
    return np.concatenate([x[: len(x) // 2] for x in state.layers(options["layers"])])


def share(weights: Array, normalization: str) -> Array:
    """Return ``weights`` (sources, 1 or channels) as shortcuts use them."""
    if normalization in ("relu", "avg_relu"):
        weights = np.maximum(weights, 0.001)  # as on its GPUs, which train; its CPU code has 0
    elif normalization == "softmax":
        weights = np.exp(weights - weights.max(0))
    else:
        return weights
    result: Array = weights / (0.0001 + weights.sum(0))
    return result


def shortcut(options: Options, state: State) -> Array:
    x = state.previous()
    sources = state.layers(options["from"])
    kind = options.get("weights_type", "none")
    factors: Array = np.ones((len(sources) + 1, 1))
    if kind != "none":
        raw = state.numbers.take(len(sources) + 1, len(x) if kind == "per_channel" else 1)
        factors = share(raw, options.get("weights_normalization", "none"))
    y = x * factors[0][:, None, None]
    for source, factor in zip(sources, factors[1:], strict=True):
        stride = max(1, source.shape[2] // x.shape[2])
        count = min(len(source), len(x))
        y[:count] += (source * factor[:, None, None])[:count, ::stride, ::stride]
    return activate(y, options, "linear")


def upsample(options: Options, state: State) -> Array:
    stride = number(options, "stride", 2)
    grown = state.previous().repeat(stride, 1).repeat(stride, 2)
    return grown * float(options.get("scale", 1))


def reorg(options: Options, state: State) -> Array:
    x, s = state.previous(), number(options, "stride", 1)
    c, h, w = x.shape
    kept = c // (s * s)
    k, j, i = np.meshgrid(np.arange(c), np.arange(h), np.arange(w), indexing="ij")
    across, down = i * s + k // kept % s, j * s + k // kept // s
    taken = across + w * s * (down + h * s * (k % kept))
    result: Array = x.reshape(-1)[taken.reshape(-1)]
    return result.reshape(c * s * s, h // s, w // s)


def crop(options: Options, state: State) -> Array:
    x = state.previous()
    rows, columns = number(options, "crop_height", 1), number(options, "crop_width", 1)
    top, left = (x.shape[1] - rows) // 2, (x.shape[2] - columns) // 2
    part = x[:, top : top + rows, left : left + columns]
    return part if number(options, "noadjust", 0) else part * 2 - 1


def scale_channels(options: Options, state: State) -> Array:
    x = state.previous()
    factors = x if number(options, "scale_wh", 0) else x.reshape(-1, 1, 1)
    return activate(state.layer(options["from"]) * factors, options, "linear")


def soft(options: Options, state: State) -> Array:
    x, groups = state.previous(), number(options, "groups", 1)
    parts = x.reshape(groups, -1) / float(options.get("temperature", 1))
    return softmax(parts, 1).reshape(x.shape)


def yolo(options: Options, state: State) -> Array:
    x, classes = state.previous().copy(), number(options, "classes", 20)
    boxes = x.reshape(-1, 5 + classes, *x.shape[1:])
    stretch = float(options.get("scale_x_y", 1))
    if not number(options, "new_coords", 0):
        boxes[:, :2] = logistic(boxes[:, :2])
        boxes[:, 4:] = logistic(boxes[:, 4:])
    boxes[:, :2] = boxes[:, :2] * stretch - 0.5 * (stretch - 1)
    return x


def region(options: Options, state: State) -> Array:
    x, classes = state.previous().copy(), number(options, "classes", 20)
    boxes = x.reshape(-1, 5 + classes, *x.shape[1:])
    boxes[:, :2] = logistic(boxes[:, :2])
    boxes[:, 4] = logistic(boxes[:, 4])
    if number(options, "softmax", 0):
        boxes[:, 5:] = softmax(boxes[:, 5:], 1)
    return x


FUNCTIONS: dict[str, Callable[[Options, State], Array]] = {
    "convolutional": convolutional,
    "connected": connected,
    "maxpool": maxpool,
    "avgpool": lambda _, state: state.previous().mean((1, 2), keepdims=True),
    "route": route,
    "route_lhalf": route_lhalf,
    "shortcut": shortcut,
    "upsample": upsample,
    "reorg": reorg,
    "crop": crop,
    "scale_channels": scale_channels,
    "sam": lambda options, state: activate(
        state.layer(options["from"]) * state.previous(), options, "linear"
    ),
    "softmax": soft,
    "yolo": yolo,
    "region": region,
    "dropout": lambda _, state: state.previous(),
    "cost": lambda _, state: state.previous(),
}


def evaluate(text: str, weights: bytes, image: Array) -> list[Array]:
    """Return what the network answers for ``image`` (c, h, w): each detection layer's output (c, h, w).

    A network without detection layers has one output, that of its last layer.
    """
    (kind, net), *sections = parse(text)
    assert kind == "net"
    assert image.shape == tuple(int(net[key]) for key in ("channels", "height", "width"))
    state = State(Numbers(weights), image)
    with np.errstate(over="ignore"):  # exp of what a logistic makes 0 of
        for kind, options in sections:
            state.outputs.append(FUNCTIONS[kind](options, state))
    assert state.numbers.left == 0, f"{state.numbers.left} numbers are left"
    return outputs(sections, state.outputs)


def outputs(sections: Iterable[tuple[str, Options]], values: list[Array]) -> list[Array]:
    pairs = list(zip((kind for kind, _ in sections), values, strict=True))
    detections = [value for kind, value in pairs if kind in ("yolo", "region")]
    return detections or [[value for kind, value in pairs if kind != "cost"][-1]]
