"""Changes of what is desired of models, as data: reconciling.py has them made in order.

Two that are equal are one: what the first comes to is what the second waits for.
"""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import NamedTuple

from server.repository.entry import Absence
from server.repository.worker import Worker


class Generation(NamedTuple):
    """How many changes were ``desired`` of a model, and up to which they were made or have failed."""

    desired: int = 0
    observed: int = 0


@dataclass(frozen=True)
class Start:
    """What is on disk is known, and ``reserve`` has reserved memory that models do not share."""

    reserve: Callable[[], Awaitable[None]]


@dataclass(frozen=True)
class Load:
    """``model`` serves what is on disk now, unless it is absent for one of ``unless`` by then.

    ``is_first``: others that are to be served have not been tried yet, so none is evicted for it.
    """

    model: str
    unless: frozenset[Absence] = frozenset()
    is_first: bool = False


@dataclass(frozen=True)
class Unload:
    """``model`` is not served until it is loaded again."""

    model: str


@dataclass(frozen=True)
class Remove:
    """``model`` is not on disk any more."""

    model: str


@dataclass(frozen=True)
class Limit:
    """``model`` is served in at most ``max_bytes``; None: in its share of the budget."""

    model: str
    max_bytes: int | None


@dataclass(frozen=True)
class Fetch:
    """The evicted model in ``slot`` serves again, if it is desired by then."""

    slot: str


@dataclass(frozen=True)
class CloseIdle:
    """The model in ``slot`` is closed if no request has used it for ``idle_seconds`` by then."""

    slot: str
    idle_seconds: float


@dataclass(frozen=True)
class Restore:
    """The model in ``slot`` serves again, whose ``worker`` was abandoned for that ``reason``."""

    slot: str
    worker: Worker
    reason: str


@dataclass(frozen=True)
class Relieve:
    """Models hold no more than the ceiling of the budget, as far as they can; made before others."""


#: Changes of what is desired of one model; others follow from what is observed.
OF_MODEL = Load | Unload | Remove | Limit
Change = Start | Load | Unload | Remove | Limit | Fetch | CloseIdle | Restore | Relieve


def described(change: Change) -> str:
    """Return ``change`` in words, for the log."""
    if isinstance(change, Start):
        return "start"
    if isinstance(change, Relieve):
        return "giving memory back"
    kind = "close" if isinstance(change, CloseIdle) else type(change).__name__.lower()
    return f"{kind} of model {change.model if isinstance(change, OF_MODEL) else change.slot}"
