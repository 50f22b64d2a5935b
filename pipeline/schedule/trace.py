"""A trace of the operations of a sweep."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True)
class TraceEvent:
    """``what`` happened to operation ``index`` of stage ``stage`` (a name).

    ``at``: seconds since the sweep began; 0 for operations that the sweep before released.
    """

    what: Literal["release", "complete"]
    stage: str
    index: int
    at: float = 0.0


Recorder = Callable[[TraceEvent], None]
