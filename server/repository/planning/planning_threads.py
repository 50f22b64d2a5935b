"""Plans on threads of the process, beside the event loop; what nobody waits for any more ends soon."""

import asyncio
import threading
from collections.abc import Callable
from typing import TypeVar

from pipeline.program.stopping import PlanningStoppedError, stopping_when
from server.errors import NotServingError

T = TypeVar("T")


class PlanningThreads:
    """Runs what plans, until it is closed."""

    def __init__(self) -> None:
        self._closed = False

    async def run(self, plan: Callable[[], T]) -> T:
        """Return what ``plan`` returns; when this is cancelled, it ends as soon as its search asks.

        Raises:
            NotServingError: closed. Otherwise what ``plan`` raises.
        """
        left = threading.Event()

        def planned() -> T:
            with stopping_when(lambda: self._closed or left.is_set()):
                return plan()

        try:
            return await asyncio.to_thread(planned)
        except PlanningStoppedError as exc:
            raise NotServingError("the server is stopping") from exc
        finally:
            left.set()

    def close(self) -> None:
        """End what is being planned, and whatever will be."""
        self._closed = True
