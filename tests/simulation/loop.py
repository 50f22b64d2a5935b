"""An event loop on a simulated thread, with the simulation's time; it waits for other threads alone."""

import asyncio
import asyncio.base_events
import concurrent.futures
from collections import Counter
from collections.abc import Callable
from typing import Any

from tests.simulation.simulator import simulation
from tests.simulation.threads import Executor

#: What an iteration of the loop takes.
_CHECK_SECONDS = 50e-6
_EXECUTOR_THREADS = 32


class Loop(asyncio.base_events.BaseEventLoop):
    """Without sockets: connections have transports of their own."""

    def __init__(self) -> None:
        super().__init__()
        self._selector = self
        self._thread: Any = None
        self._is_woken = False
        self._clock_resolution = 1e-9
        self._threads: Executor | None = None
        self._scheduled: list[Any] = []
        #: How often it has looked for what is ready.
        self.iterations = 0

    def time(self) -> float:
        """Return the simulation's time."""
        return simulation().now

    def select(self, timeout: float | None) -> list[Any]:
        """Wait until woken, or for so long; another thread may go on in any case."""
        self.iterations += 1
        run = simulation()
        if timeout == 0:
            run.now += _CHECK_SECONDS
            run.switch("loop")
        elif not self._is_woken:
            self._thread = run.current
            run.block(None if timeout is None else run.now + timeout, "select")
            self._thread = None
        self._is_woken = False
        return []

    def timers(self) -> Counter[tuple[int, str]]:
        """Return which calls wait for their time, and how often: id of the object, name of its method."""
        calls = [handle._callback for handle in self._scheduled if not handle.cancelled()]
        methods = [call for call in calls if hasattr(call, "__self__")]
        return Counter((id(call.__self__), call.__qualname__) for call in methods)

    def _process_events(self, event_list: list[Any]) -> None:
        pass

    def _write_to_self(self) -> None:
        self._is_woken = True
        thread, self._thread = self._thread, None
        if thread is not None:
            simulation().wake(thread)
        simulation().switch("wake")

    def run_in_executor(  # type: ignore[override]
        self, executor: concurrent.futures.Executor | None, func: Callable[..., Any], *args: Any
    ) -> "asyncio.Future[Any]":
        """Call ``func`` on a thread of ``executor``, or of the loop's own."""
        if executor is None:
            if self._threads is None:
                self._threads = Executor(_EXECUTOR_THREADS, "asyncio")
            executor = self._threads
        return asyncio.wrap_future(executor.submit(func, *args), loop=self)

    def end_threads(self) -> None:
        """End the loop's own threads; blocks."""
        threads, self._threads = self._threads, None
        if threads is not None:
            threads.shutdown()
