"""Callbacks at the ends of copies and kernels: a thread that sleeps in the driver, one for each stream."""

import queue
import threading
from collections.abc import Callable
from dataclasses import dataclass

from pipeline.devices.base import Done
from pipeline.devices.cuda.driver import Driver


@dataclass(frozen=True)
class _Wait:
    start: int
    end: int
    done: Done


class Waiter:
    """Enqueues work on ``stream`` and calls back when it has ended, in order.

    Events are used again. The queue is bounded by what the schedule has in flight.
    """

    def __init__(self, driver: Driver, stream: int, name: str) -> None:
        self._driver = driver
        self._stream = stream
        self._name = name
        self._free: list[int] = []
        self._waits: queue.SimpleQueue[_Wait | None] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None
        self._lock = threading.Lock()

    def after(self, enqueue: Callable[[], None], done: Done) -> None:
        """Run ``enqueue`` and call ``done`` when all that is in the stream by then has ended.

        ``done`` gets the seconds between the beginning and the end of what was enqueued.

        Raises:
            DeviceError: a call failed at once; ``done`` is not called.
        """
        with self._lock:  # events are waited for in the order in which they are recorded
            start, end = self._event(), self._event()
            try:
                self._driver.record(start, self._stream)
                enqueue()
                self._driver.record(end, self._stream)
            except BaseException:
                self._free += (start, end)
                raise
            if self._thread is None:
                self._thread = threading.Thread(target=self._work, name=self._name, daemon=True)
                self._thread.start()
            self._waits.put(_Wait(start, end, done))

    def close(self) -> None:
        """End the thread; everything it waits for has ended."""
        with self._lock:
            thread, self._thread = self._thread, None
        if thread is not None:
            self._waits.put(None)
            thread.join()
        while self._free:
            self._driver.destroy_event(self._free.pop())

    def _event(self) -> int:
        return self._free.pop() if self._free else self._driver.create_event()

    def _work(self) -> None:
        while (wait := self._waits.get()) is not None:
            error: Exception | None = None
            seconds = 0.0
            try:
                self._driver.synchronize(wait.end)
                seconds = self._driver.elapsed(wait.start, wait.end)
            except Exception as exc:  # noqa: BLE001  the sweep that waits raises it
                error = exc
            self._free += (wait.start, wait.end)
            wait.done(error, seconds)
            del wait  # kept while waiting, it would keep a model's buffers
