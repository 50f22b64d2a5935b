"""Launches of kernels/normalise.cu."""

from dataclasses import dataclass

from pipeline.devices.cuda.call import Call, Pointer
from pipeline.devices.cuda.calls.activation import Activated
from pipeline.devices.cuda.calls.launches import per_element, per_group


@dataclass(frozen=True)
class Statistics:
    """Vectors [channels] of a batch norm."""

    scale: Pointer
    bias: Pointer
    mean: Pointer
    variance: Pointer


@dataclass(frozen=True)
class Channels:
    """A contiguous tensor of ``count`` elements: ``inner`` neighbours are of one of ``channels``."""

    count: int
    channels: int
    inner: int


def batch_normalise(
    x: Pointer, y: Pointer, statistics: Statistics, shape: Channels, epsilon: float, then: Activated
) -> Call:
    """Return the launch of a batch norm with given statistics, and an activation. ``y`` may be ``x``.

    Raises:
        ValueError: there is nothing to compute, or too much.
    """
    vectors = (statistics.scale, statistics.bias, statistics.mean, statistics.variance)
    numbers = (shape.count, shape.channels, shape.inner, float(epsilon))
    return per_element(
        "normalise", "batch_normalise", shape.count, x, *vectors, y, *numbers, *then.tail
    )


def group_normalise(
    x: Pointer,
    y: Pointer,
    parameters: tuple[Pointer | None, Pointer | None],
    shape: Channels,
    length: int,
    epsilon: float,
) -> Call:
    """Return the launch that normalises each ``length`` neighbours by their mean and variance.

    Args:
        x: what to normalise.
        y: the result.
        parameters: scale and bias, [channels] each; None is 1 and 0.
        shape: of ``x``.
        length: divides the number of elements.
        epsilon: added to the variance.

    Raises:
        ValueError: there is nothing to compute, or too much.
    """
    numbers = (length, shape.channels, shape.inner, float(epsilon))
    groups = shape.count // length
    return per_group("normalise", "group_normalise", groups, length, x, *parameters, y, *numbers)


@dataclass(frozen=True)
class Response:
    """A local response norm over ``size`` channels: x / (bias + alpha / size * squares) ** beta."""

    size: int
    alpha: float
    beta: float
    bias: float


def response_normalise(x: Pointer, y: Pointer, shape: Channels, response: Response) -> Call:
    """Return the launch of a local response norm.

    Raises:
        ValueError: there is nothing to compute, or too much.
    """
    before = (response.size - 1) // 2
    reach = (before, response.size - 1 - before)
    numbers = (shape.count, shape.channels, shape.inner, *reach)
    factors = (float(response.alpha) / response.size, float(response.beta), float(response.bias))
    return per_element("normalise", "response_normalise", shape.count, x, y, *numbers, *factors)
