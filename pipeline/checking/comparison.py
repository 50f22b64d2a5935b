"""How answers are compared: what a process that compiles returns to one that checks."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Tolerance:
    """``fraction``: of an output's largest value; ``nudge``: the part of it that is roundings of floats.

    ``steps``: of quantised integers.
    """

    fraction: float
    steps: int = 0
    nudge: float = 0.0


@dataclass(frozen=True)
class ComparisonRules:
    """How the answers of a network are compared.

    ``random``, ``jumps``, ``compared``: as of ``Traits``, of its source.
    """

    tolerance: Tolerance
    random: str = ""
    jumps: bool = False
    compared: tuple[tuple[str, float], ...] = ()
