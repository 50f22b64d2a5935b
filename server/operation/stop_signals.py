"""Signals that end the service: the first sets an event, a second one ends the process at once."""

import asyncio
import logging
import os
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

_log = logging.getLogger(__name__)

_SIGNALS = (signal.SIGTERM, signal.SIGINT)
# GNU timeout sends a signal to the process, then to its group.
_SAME_SIGNAL_SECONDS = 0.1


class StopSignals:
    """``stop`` is set by the first SIGTERM or SIGINT inside ``caught``."""

    def __init__(self) -> None:
        self.stop = asyncio.Event()
        self._first_at: float | None = None

    @contextmanager
    def caught(self) -> Iterator[None]:
        """Handle the signals in the running event loop's thread; others than the main one get none."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        self._loop = asyncio.get_running_loop()
        # Not the loop's own handlers: a second signal counts also where the loop is held up.
        before = {signum: signal.signal(signum, self._handle) for signum in _SIGNALS}
        try:
            yield
        finally:
            for signum, handler in before.items():
                signal.signal(signum, handler)

    def _handle(self, signum: int, frame: FrameType | None) -> None:
        now = time.monotonic()
        if self._first_at is None:
            self._first_at = now
            self._loop.call_soon_threadsafe(self.stop.set)
        elif now - self._first_at >= _SAME_SIGNAL_SECONDS:
            _log.warning("a second signal to stop: ending at once")
            signal.signal(signum, signal.SIG_DFL)
            os.kill(os.getpid(), signum)
