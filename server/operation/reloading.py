"""Reading again what has changed, when told to: keys, certificate, models."""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping

from server.operation.notify import Notifier

_log = logging.getLogger(__name__)

Step = Callable[[], Awaitable[object]]


class Reloading:
    """Takes all ``steps``, by what they read, each time somebody asks; ``describe``: what is served then.

    They do not wait for each other: models take minutes, and a key that must not open any more is urgent.
    A step that is asked for while it is taken is taken once more: what was read may be older than the wish.
    """

    def __init__(
        self, steps: Mapping[str, Step], notifier: Notifier, describe: Callable[[], str]
    ) -> None:
        self._steps = steps
        self._notifier = notifier
        self._describe = describe
        self._asked = {what: asyncio.Event() for what in steps}
        self._taking: set[str] = set()
        self._failed: set[str] = set()
        self._tasks: list[asyncio.Task[None]] = []

    def ask(self) -> None:
        """Let everything be read again, soon: once it has begun, and has not ended."""
        for asked in self._asked.values():
            asked.set()
        if self._tasks:
            self._notifier.reloading()

    def begin(self) -> None:
        """Serve who asks, and who has asked."""
        if self._is_asked():
            self._notifier.reloading()
        self._tasks = [asyncio.create_task(self._follow(what)) for what in self._steps]

    def end(self) -> None:
        """Read nothing any more."""
        for task in self._tasks:
            task.cancel()
        self._tasks = []

    def _is_asked(self) -> bool:
        return any(asked.is_set() for asked in self._asked.values())

    async def _follow(self, what: str) -> None:
        """Take one step whenever somebody asks; the last one that ends says that all has been read."""
        asked = self._asked[what]
        while True:
            await asked.wait()
            asked.clear()
            self._taking.add(what)
            await self._take(what)
            self._taking.remove(what)
            if not self._taking and not self._is_asked():
                self._notifier.ready(self._describe())
                self._say_what_was_read()

    async def _take(self, what: str) -> None:
        """Take one step; what fails keeps what it had, and the server serves on."""
        self._failed.discard(what)
        try:
            await self._steps[what]()
        except Exception as exc:  # noqa: BLE001  the server serves on
            self._failed.add(what)
            _log.error("%s not read again: %s", what, exc)
        else:
            _log.info("%s read again", what)

    def _say_what_was_read(self) -> None:
        if self._failed:
            failed = ", ".join(sorted(self._failed))
            _log.warning("not read again, and as before: %s; %s", failed, self._describe())
        else:
            _log.info("all has been read again: %s", self._describe())
