"""One request on its way through partitions."""

import time
from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack, nullcontext
from typing import Any

from pipeline.execution.errors import CancelledError, DeadlineError
from pipeline.execution.given import Take, Tensors
from pipeline.execution.statistics import SweepStatistics
from pipeline.schedule.trace import Recorder


class Frame:
    """One request on its way; ``took`` and ``waited`` say what its partitions took, and its waits for them.

    Changed under the pipeline's lock, but for what the worker that runs it writes.
    """

    def __init__(
        self,
        given: Tensors,
        take: Take[Any],
        deadline: float | None,
        cancelled: Callable[[], bool],
        record: Recorder | None,
    ) -> None:
        self.given = given
        self.take = take
        self.deadline = deadline
        self.abandoned = False
        self._cancelled = cancelled
        self.record = record
        self.running = ExitStack()
        self.during: AbstractContextManager[object] = nullcontext()
        self.took: list[SweepStatistics] = []
        self.waited = 0.0
        self.answer: Any = None
        self.error: BaseException | None = None
        self.over = False
        self._since: float | None = time.perf_counter()

    def cancelled(self) -> bool:
        """Whether nobody wants its answer any longer."""
        return self.abandoned or self._cancelled()

    @property
    def runs(self) -> bool:
        """Whether a partition runs it."""
        return not self.over and self._since is None

    def begins(self) -> None:
        """A partition runs it from now on."""
        assert self._since is not None
        self.waited += time.perf_counter() - self._since
        self._since = None

    def waits(self) -> None:
        """It waits for the next partition."""
        self._since = time.perf_counter()

    def ends(self) -> None:
        """It is through, or goes no further."""
        self.over, self.given = True, {}

    def left(self) -> float | None:
        """Return how long its caller may wait on; None: until something changes.

        Raises:
            CancelledError, DeadlineError: it waits for a partition, and is not to do so any longer.
        """
        if self._since is None:
            return None  # what runs it asks itself
        if self.cancelled():
            raise CancelledError("cancelled while another frame was running")
        if self.deadline is None:
            return None
        left = self.deadline - time.monotonic()
        if left <= 0:
            raise DeadlineError("the deadline passed while another frame was running")
        return left
