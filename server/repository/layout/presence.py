"""What is still there, asked without holding up the event loop."""

import asyncio
from collections.abc import Callable
from pathlib import Path

from server.requests.uninterrupted import to_its_end

_LIMIT_SECONDS = 1.0


class Presence:
    """Asks the file system, by one thread at a time: one that is far away may not answer for minutes."""

    def __init__(self, folder: Path, limit_seconds: float = _LIMIT_SECONDS) -> None:
        self._folder = folder
        self._limit_seconds = limit_seconds
        self._turn = asyncio.Lock()

    async def is_there(self) -> bool:
        """Return whether the folder is there; no answer in time is no."""
        return await self.has(is_folder)

    async def has(self, question: Callable[[Path], bool]) -> bool:
        """Return what ``question``, which blocks, says of the folder; no answer in time is no."""
        asking = asyncio.create_task(self._asked(question))
        try:
            done, _ = await asyncio.wait({asking}, timeout=self._limit_seconds)
            return any(answer.result() for answer in done)
        finally:
            asking.cancel()  # who is asked goes on to the end; who has not had the turn leaves the line

    async def _asked(self, question: Callable[[Path], bool]) -> bool:
        async with self._turn:
            return await to_its_end(asyncio.to_thread(question, self._folder))


def is_folder(path: Path) -> bool:
    """Return whether ``path`` is a folder, as far as the file system says; blocks."""
    try:
        return path.is_dir()
    except OSError:  # a name longer than it has, or nobody may look
        return False
