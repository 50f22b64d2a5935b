"""Operators that scale numbers by what numbers beside them are: norms, softmax."""

import math
from collections.abc import Callable
from dataclasses import dataclass

from models.network.activations import Activation
from models.network.node import NamedTensor, NodeReader, UnsuitedError, axis_of

# Before this operator set a softmax saw its input as a matrix, cut in two at its axis.
_SOFTMAX_OF_ONE_AXIS = 13


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchNorm:
    """activation(scale (x - mean) / sqrt(variance + epsilon) + bias): vectors [C] on ``x`` [N, C, ...]."""

    x: NamedTensor
    scale: NamedTensor
    bias: NamedTensor
    mean: NamedTensor
    variance: NamedTensor
    y: NamedTensor
    epsilon: float
    activation: Activation | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupNorm:
    """Each ``length`` neighbours of ``x`` less their mean, by the root of their variance plus ``epsilon``.

    Then times ``scale`` plus ``bias``, vectors of ``channels`` of which ``inner`` neighbours have one each;
    None: 1 and 0.
    """

    x: NamedTensor
    y: NamedTensor
    length: int
    channels: int
    inner: int
    epsilon: float
    scale: NamedTensor | None = None
    bias: NamedTensor | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ResponseNorm:
    """x / (bias + alpha / size * squares) ** beta, of ``size`` channels around each of [N, C, ...]."""

    x: NamedTensor
    y: NamedTensor
    size: int
    alpha: float
    beta: float
    bias: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Softmax:
    """Of ``length`` numbers that lie ``inner`` apart, or their ``logarithm``."""

    x: NamedTensor
    y: NamedTensor
    length: int
    inner: int
    logarithm: bool = False

    @property
    def outer(self) -> int:
        return math.prod(self.x.shape) // (self.length * self.inner)


def batch_norm(read: NodeReader) -> BatchNorm:
    """BatchNormalization as at inference."""
    read.require("training_mode", 0)
    read.require("spatial", 1)
    x, (scale, bias, mean, variance) = read.floats(0), (read.floats(at) for at in range(1, 5))
    if len(x.shape) < 2 or {each.shape for each in (scale, bias, mean, variance)} != {x.shape[1:2]}:
        raise UnsuitedError("statistics of other shapes")
    epsilon = float(read.attribute("epsilon"))
    y = read.made(x)
    return BatchNorm(
        x=x, scale=scale, bias=bias, mean=mean, variance=variance, y=y, epsilon=epsilon
    )


def _parameters(read: NodeReader, count: int) -> dict[str, NamedTensor | None]:
    """Return scale and bias, ``count`` numbers each."""
    parameters = {"scale": read.optional(1), "bias": read.optional(2)}
    for value in parameters.values():
        if value is not None and math.prod(value.shape) != count:
            raise UnsuitedError(f"parameters {list(value.shape)}, not {count} of them")
    return parameters


def _group_norm(read: NodeReader, length: int, channels: int, inner: int) -> GroupNorm:
    return GroupNorm(
        x=read.floats(0),
        y=read.made(read.floats(0)),
        length=length,
        channels=channels,
        inner=inner,
        epsilon=float(read.attribute("epsilon")),
        **_parameters(read, channels),
    )


def instance_norm(read: NodeReader) -> GroupNorm:
    """InstanceNormalization: a channel of an image is a group."""
    _, channels, *plane = read.floats(0).shape
    return _group_norm(read, math.prod(plane), channels, math.prod(plane))


def group_norm(read: NodeReader) -> GroupNorm:
    """GroupNormalization: some channels of an image are a group."""
    _, channels, *plane = read.floats(0).shape
    inner = math.prod(plane)
    return _group_norm(read, channels // int(read.attribute("num_groups")) * inner, channels, inner)


def layer_norm(read: NodeReader) -> GroupNorm:
    """LayerNormalization: each number of a group has its own scale and bias."""
    shape = read.floats(0).shape
    length = math.prod(shape[axis_of(int(read.attribute("axis")), len(shape)) :])
    return _group_norm(read, length, length, 1)


def response_norm(read: NodeReader) -> ResponseNorm:
    """LRN."""
    x = read.floats(0)
    alpha, beta, bias = (float(read.attribute(name)) for name in ("alpha", "beta", "bias"))
    size = int(read.attribute("size"))
    return ResponseNorm(x=x, y=read.made(x), size=size, alpha=alpha, beta=beta, bias=bias)


def softmax(logarithm: bool) -> Callable[[NodeReader], Softmax]:
    """Return the reader of softmaxes, or of their logarithms."""

    def read_softmax(read: NodeReader) -> Softmax:
        """Softmax, LogSoftmax; in old operator sets over all axes from one on."""
        x = read.floats(0)
        flattens = read.node.opset < _SOFTMAX_OF_ONE_AXIS
        axis = read.node.attributes.get("axis", 1) if flattens else read.attribute("axis")
        axis = axis_of(int(axis), len(x.shape))
        length = math.prod(x.shape[axis:]) if flattens else x.shape[axis]
        inner = 1 if flattens else math.prod(x.shape[axis + 1 :])
        return Softmax(x=x, y=read.made(x), length=length, inner=inner, logarithm=logarithm)

    return read_softmax
