"""Functions of each element, by one name each: activations, the other operators of one number, and of two.

Everything that computes or recognises one of them takes its name from here: fused kernels, native chains,
CUDA, exported C. What ONNX calls them stands here and nowhere else.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

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
        return (self.alpha, self.beta)[: PARAMETERS[self.kind]]


@dataclass(frozen=True, slots=True)
class Spelling:
    """What an operator of ONNX is called here; ``parameters``: its attributes and their defaults.

    ``uneven``: its kernel in ONNX Runtime, for x86 or for Arm, computes the elements that are left behind
    whole vectors in another way: bits depend on how many there are, and on how threads divide them.
    ``apart``: it has none, but several operators, each of which passes over all elements.
    """

    kind: Kind
    parameters: tuple[tuple[str, float], ...] = ()
    uneven: bool = False
    apart: bool = False

    def activation(self, given: Mapping[str, Any]) -> Activation | None:
        """Return the activation with the attributes ``given``; None: one is no number."""
        numbers = [given.get(name, default) for name, default in self.parameters]
        if not all(isinstance(number, float | int) for number in numbers):
            return None  # in an operator set that does not have the operator, it is unchecked
        return Activation(self.kind, *map(float, numbers))


#: By operator; one of another domain than ONNX's own has that in front. Clip and Gelu are said below.
SPELLINGS: Mapping[str, Spelling] = {
    "Abs": Spelling("absolute"),
    "Ceil": Spelling("ceil"),
    "Celu": Spelling("celu", (("alpha", 1.0),), uneven=True),
    "Elu": Spelling("elu", (("alpha", 1.0),), uneven=True),
    "Erf": Spelling("erf"),
    "Exp": Spelling("exp"),
    "Floor": Spelling("floor"),
    "HardSigmoid": Spelling("hard_sigmoid", (("alpha", 0.2), ("beta", 0.5))),
    "HardSwish": Spelling("hard_swish", apart=True),
    "LeakyRelu": Spelling("leaky_relu", (("alpha", 0.01),)),
    "Log": Spelling("log", uneven=True),
    "Mish": Spelling("mish", (("alpha", 1.0),), uneven=True, apart=True),
    "Neg": Spelling("negative"),
    "Reciprocal": Spelling("reciprocal", uneven=True),
    "Relu": Spelling("relu"),
    "Round": Spelling("round"),
    "Selu": Spelling("selu", (("alpha", 1.6732632), ("gamma", 1.050701)), uneven=True),
    "Sigmoid": Spelling("sigmoid"),
    "Sign": Spelling("sign"),
    "Softplus": Spelling("softplus", uneven=True),
    "Softsign": Spelling("softsign", uneven=True),
    "Sqrt": Spelling("sqrt"),
    "Swish": Spelling("silu", (("alpha", 1.0),)),
    "Tanh": Spelling("tanh"),
    "ThresholdedRelu": Spelling("thresholded_relu", (("alpha", 1.0),)),
    "com.microsoft.FastGelu": Spelling("gelu_tanh"),
    "com.microsoft.Gelu": Spelling("gelu"),
    "com.microsoft.QuickGelu": Spelling("silu", (("alpha", 1.702),)),
}
#: Arithmetic by operator.
PAIRS: Mapping[str, Arithmetic] = {
    "Add": "add",
    "Div": "divide",
    "Max": "larger",
    "Min": "smaller",
    "Mod": "modulo",
    "Mul": "multiply",
    "PRelu": "scale_negative",
    "Pow": "power",
    "Sub": "subtract",
    "Sum": "add",
}
#: Arithmetic whose operands may change places.
COMMUTE: frozenset[Arithmetic] = frozenset(("add", "multiply", "larger", "smaller"))
#: How many parameters a kind has, ``alpha`` first.
PARAMETERS: Mapping[str, int] = {
    "clip": 2,
    **{spelling.kind: len(spelling.parameters) for spelling in SPELLINGS.values()},
}
#: Kinds that ONNX Runtime has no kernel for.
TAKEN_APART = frozenset(spelling.kind for spelling in SPELLINGS.values() if spelling.apart)
_GELUS: Mapping[str, Kind] = {"none": "gelu", "tanh": "gelu_tanh"}
_UNBOUNDED = (-math.inf, math.inf)
#: Operators that are a function of each element of their first input.
OPERATORS = frozenset((*SPELLINGS, "Clip", "Gelu"))

#: Returns the one number that a name stands for; None: it is not known, or there are several.
Number = Callable[[str], float | None]


def activation_of(
    operator: str, inputs: Sequence[str], attributes: Mapping[str, Any], number: Number
) -> Activation | None:
    """Return the function that a node is; None: it is none, or its parameters are not known.

    ``inputs``: their names. ``number``: of inputs that are constants.
    """
    if operator == "Clip":
        return _clip(inputs, attributes, number)
    if len(inputs) != 1:
        return None
    if operator == "Gelu":
        kind = _GELUS.get(attributes.get("approximate", "none"))
        return None if kind is None else Activation(kind)
    spelling = SPELLINGS.get(operator)
    return None if spelling is None else spelling.activation(attributes)


def arithmetic_of(operator: str, attributes: Mapping[str, Any]) -> Arithmetic | None:
    """Return the function of two that a node is; None: it is none with these attributes."""
    if operator == "Mod" and not attributes.get("fmod"):
        return None  # of whole numbers, with the sign of the second
    return PAIRS.get(operator)


def activation_named(name: str, parameters: Sequence[float]) -> Activation | None:
    """Return the activation that a fused operator has as an attribute; None: there is none such.

    Parameters that are left out have their defaults.
    """
    if name == "Clip":
        return Activation("clip", *(*parameters, *_UNBOUNDED[len(parameters) :])[:2])
    spelling = SPELLINGS.get(name)
    if spelling is None:
        return None
    names = (key for key, _ in spelling.parameters)
    return spelling.activation(dict(zip(names, parameters, strict=False)))


def _clip(
    inputs: Sequence[str], attributes: Mapping[str, Any], number: Number
) -> Activation | None:
    """Return Clip's bounds: attributes before operator set 11, inputs since, each of them optional."""
    bounds = [
        float(attributes.get(name, bound))
        for name, bound in zip(("min", "max"), _UNBOUNDED, strict=True)
    ]
    for position, name in enumerate(inputs[1:3]):
        if name:
            given = number(name)
            if given is None:
                return None
            bounds[position] = given
    return Activation("clip", *bounds)
