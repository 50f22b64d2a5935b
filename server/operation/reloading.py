"""Reading again what has changed, when told to: keys, certificate, models."""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping

from server.operation.notify import Notifier

_log = logging.getLogger(__name__)

Step = Callable[[], Awaitable[object]]


class Reloading:
    """Takes its ``steps``, by what they read, each time somebody asks; ``describe``: what is served then.

    Asked while it is at it, it does it once more: what was read may be older than the wish.
    """

    def __init__(
        self, steps: Mapping[str, Step], notifier: Notifier, describe: Callable[[], str]
    ) -> None:
        self._steps = steps
        self._notifier = notifier
        self._describe = describe
        self._asked = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    def ask(self) -> None:
        """Let everything be read again, soon: once it has begun, and has not ended."""
        self._asked.set()

    def begin(self) -> None:
        """Serve who asks, and who has asked."""
        self._task = asyncio.create_task(self._run())

    def end(self) -> None:
        """Read nothing any more."""
        if self._task is not None:
            self._task.cancel()

    async def _run(self) -> None:
        while True:
            await self._asked.wait()
            self._asked.clear()
            self._notifier.reloading()
            done = [what for what, step in self._steps.items() if await _taken(what, step)]
            self._notifier.ready(self._describe())
            _log.info("read again: %s; %s", ", ".join(done) or "nothing", self._describe())


async def _taken(what: str, step: Step) -> bool:
    """Take one step, and return whether it could be; what fails keeps what it had, and others go on."""
    try:
        await step()
    except Exception as exc:  # noqa: BLE001  the server serves on
        _log.error("%s not read again: %s", what, exc)
        return False
    return True
