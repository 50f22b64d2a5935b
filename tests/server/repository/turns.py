"""An event loop without threads, files or time: what happens next is drawn, the same for the same seed."""

import asyncio
import asyncio.base_events
import contextlib
import random
from collections.abc import Callable
from typing import Any


class NeverError(AssertionError):
    """Nothing can happen any more, and a task waits."""


class Turns(asyncio.base_events.BaseEventLoop):
    """Runs what threads would at turns of its own, as ``drawn``; ``each`` is called at every turn.

    Its clock stands still: no turn ends a wait for a time.
    """

    def __init__(self, drawn: random.Random, each: Callable[[], None]) -> None:
        super().__init__()
        self._drawn = drawn
        self._each = each
        self._resting: asyncio.Future[None] | None = None
        self._selector = self

    def select(self, timeout: float | None) -> list[Any]:
        """Stand for a selector: nothing comes from outside."""
        self._each()
        if timeout != 0:  # nothing is ready
            if self._resting is None:
                raise NeverError("all wait for each other")
            self._resting.set_result(None)
            self._resting = None
        return []

    async def rest(self) -> None:
        """Wait until nothing is left to do."""
        self._resting = self.create_future()
        await self._resting

    def end(self) -> None:
        """End what has not ended, where a check has failed."""
        self._each = lambda: None
        with contextlib.suppress(NeverError):
            while tasks := asyncio.all_tasks(self):
                for task in tasks:
                    task.cancel()
                self.run_until_complete(asyncio.wait(tasks))

    def time(self) -> float:
        return 0.0

    def run_in_executor(  # type: ignore[override]
        self, executor: Any, func: Callable[..., Any], *args: Any
    ) -> Any:
        """Call it some turns later, also when no task waits any more if it has begun by then."""
        future = self.create_future()

        def begin(turns: int) -> None:
            if future.cancelled():
                return
            self._after(turns, work)

        def work() -> None:
            try:
                found = func(*args)
            except BaseException as exc:  # noqa: BLE001  as a thread does
                if not future.cancelled():
                    future.set_exception(exc)
            else:
                if not future.cancelled():
                    future.set_result(found)

        self._after(self._drawn.randrange(3), begin, self._drawn.randrange(3))
        return future

    def _after(self, turns: int, work: Callable[..., Any], *args: Any) -> None:
        if turns:
            self.call_soon(self._after, turns - 1, work, *args)
        else:
            self.call_soon(work, *args)

    def _process_events(self, event_list: Any) -> None: ...

    def _write_to_self(self) -> None: ...
