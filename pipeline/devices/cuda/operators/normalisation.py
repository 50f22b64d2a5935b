"""Launches of kernels/normalise.cu and softmax.cu: norms, softmax."""

import math

from models.network.node import NamedTensor
from models.network.operators.reading import BatchNorm, GroupNorm, ResponseNorm, Softmax
from pipeline.devices.cuda.call import KernelLaunch
from pipeline.devices.cuda.operators.launches import activation_arguments, per_element, per_group
from pipeline.devices.cuda.scope import Scope


def _channels(x: NamedTensor) -> tuple[int, int, int]:
    """Return how many elements [N, C, ...] has, its channels, and how many neighbours are of one."""
    return math.prod(x.shape), x.shape[1], math.prod(x.shape[2:])


def batch_norm(it: BatchNorm, scope: Scope) -> list[KernelLaunch]:
    """Return the launch of a batch norm and its activation."""
    count, *parts = _channels(it.x)
    vectors = [scope.read(each) for each in (it.scale, it.bias, it.mean, it.variance)]
    numbers = (count, *parts, it.epsilon, *activation_arguments(it.activation))
    pointers = scope.read(it.x), *vectors, scope.write(it.y)
    return [per_element("normalise", "batch_normalise", count, *pointers, *numbers)]


def group_norm(it: GroupNorm, scope: Scope) -> list[KernelLaunch]:
    """Return the launch that normalises groups of neighbours."""
    groups = math.prod(it.x.shape) // it.length
    parameters = scope.optional(it.scale), scope.optional(it.bias)
    pointers = scope.read(it.x), *parameters, scope.write(it.y)
    numbers = (it.length, it.channels, it.inner, it.epsilon)
    return [per_group("normalise", "group_normalise", groups, it.length, *pointers, *numbers)]


def response_norm(it: ResponseNorm, scope: Scope) -> list[KernelLaunch]:
    """Return the launch of a local response norm."""
    before = (it.size - 1) // 2
    count, *parts = _channels(it.x)
    numbers = (count, *parts, before, it.size - 1 - before)
    factors = (it.alpha / it.size, it.beta, it.bias)
    pointers = scope.read(it.x), scope.write(it.y)
    return [per_element("normalise", "response_normalise", count, *pointers, *numbers, *factors)]


def softmax(it: Softmax, scope: Scope) -> list[KernelLaunch]:
    """Return the launch of a softmax or its logarithm."""
    pointers, end = (scope.read(it.x), scope.write(it.y)), int(it.logarithm)
    length, rows = it.length, it.outer * it.inner
    if it.inner == 1:
        return [per_group("softmax", "softmax_rows", rows, length, *pointers, length, end)]
    numbers = (rows, length, it.inner, end)
    return [per_element("softmax", "softmax_columns", rows, *pointers, *numbers)]
