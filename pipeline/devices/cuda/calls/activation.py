"""The activations that kernels fuse, by the numbers of kernels/headers/activation.cuh."""

from dataclasses import dataclass
from enum import IntEnum


class Activation(IntEnum):
    """A function of one number and of two parameters, alpha and beta; most use neither."""

    NONE = 0
    RELU = 1
    #: alpha: slope below zero.
    LEAKY_RELU = 2
    #: alpha: lower bound, beta: upper bound.
    CLIP = 3
    SIGMOID = 4
    TANH = 5
    MISH = 6
    SILU = 7
    #: alpha: slope, beta: value at zero.
    HARD_SIGMOID = 8
    HARD_SWISH = 9
    #: alpha: minus the limit at minus infinity.
    ELU = 10
    SOFTPLUS = 11
    EXP = 12
    #: By the error function.
    GELU = 13
    GELU_TANH = 14
    #: alpha: slope inside the sigmoid.
    QUICK_GELU = 15


@dataclass(frozen=True)
class Activated:
    """An activation and its parameters."""

    activation: Activation = Activation.NONE
    alpha: float = 0.0
    beta: float = 0.0

    @property
    def tail(self) -> tuple[int, float, float]:
        """The last arguments of a kernel that applies it."""
        return (int(self.activation), float(self.alpha), float(self.beta))
