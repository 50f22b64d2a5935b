"""Functions of each element, by one name each: activations, the other operators of one number, and of two.

Everything that computes or recognises one of them takes its name from here: fused kernels, native chains,
CUDA, exported C. What ONNX calls them is in the catalogue (models/network/catalogue/elementwise.py).
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Literal

Kind = Literal[
    "absolute",
    "ceil",
    "celu",
    "clip",
    "elu",
    "erf",
    "exp",
    "floor",
    "gelu",
    "gelu_tanh",
    "hard_sigmoid",
    "hard_swish",
    "leaky_relu",
    "log",
    "mish",
    "negative",
    "reciprocal",
    "relu",
    "round",
    "selu",
    "sigmoid",
    "sign",
    "silu",
    "softplus",
    "softsign",
    "sqrt",
    "tanh",
    "thresholded_relu",
]
#: Of two; ``scale_negative``: the first where it is not negative, else their product (PRelu).
Arithmetic = Literal[
    "add",
    "subtract",
    "multiply",
    "divide",
    "modulo",
    "power",
    "larger",
    "smaller",
    "scale_negative",
]


@dataclass(frozen=True, slots=True)
class Activation:
    """``kind`` with its parameters; most have none.

    ``alpha``: the slope below zero (leaky_relu), the slope (hard_sigmoid), minus the limit at minus
    infinity (elu; celu, whose slope at zero is 1), the slope inside the sigmoid (silu: x sigmoid(alpha x)),
    the sign of what it is of (mish: of alpha x, 1 or -1), the lower bound (clip), up to what it is zero
    (thresholded_relu). ``beta``: the value at zero (hard_sigmoid), the upper bound (clip), what an elu is
    multiplied by (selu).
    """

    kind: Kind
    alpha: float = 0.0
    beta: float = 0.0

    @property
    def parameters(self) -> tuple[float, ...]:
        """Those that the kind has."""
        return (self.alpha, self.beta)[: PARAMETERS.get(self.kind, 0)]


#: How many parameters functions of one number have, ``alpha`` first; those that are not here have none.
PARAMETERS: Mapping[str, int] = {
    "celu": 1,
    "clip": 2,
    "elu": 1,
    "hard_sigmoid": 2,
    "leaky_relu": 1,
    "mish": 1,
    "selu": 2,
    "silu": 1,
    "thresholded_relu": 1,
}
#: Returns the one number that a name stands for; None: it is not known, or there are several.
Number = Callable[[str], float | None]
