"""What must hold after a run of the mill: one line each, with the figure and its bound."""

from dataclasses import dataclass
from typing import Any

_TOLERANCE = 1.05


@dataclass(frozen=True)
class Requirement:
    """One thing that must hold."""

    name: str
    value: Any
    bound: Any
    holds: bool

    def as_dict(self) -> dict[str, Any]:
        """Return the line for the report."""
        return {"value": self.value, "bound": self.bound, "holds": self.holds}


def memory_bound(budget: int, base: int, pool: int) -> int:
    """Return the most bytes that the group of the server may ever hold."""
    return int((budget + base + pool) * _TOLERANCE)


def at_most(name: str, value: float | None, bound: float) -> Requirement:
    """Return the line that ``value`` is at most ``bound``; None never is."""
    return Requirement(name, value, bound, value is not None and value <= bound)


def equal(name: str, value: Any, wanted: Any) -> Requirement:
    """Return the line that ``value`` is ``wanted``."""
    return Requirement(name, value, wanted, value == wanted)
