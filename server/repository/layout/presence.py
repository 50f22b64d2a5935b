"""Whether a folder is still there, asked without holding up the event loop."""

import asyncio
from pathlib import Path

_LIMIT_SECONDS = 1.0


class Presence:
    """Asks the file system, by one thread at a time: one that is far away may not answer for minutes."""

    def __init__(self, folder: Path, limit_seconds: float = _LIMIT_SECONDS) -> None:
        self._folder = folder
        self._limit_seconds = limit_seconds
        self._asking: asyncio.Future[bool] | None = None

    async def is_there(self) -> bool:
        """Return whether the folder is there; no answer in time is no."""
        if self._asking is None or self._asking.done():
            loop = asyncio.get_running_loop()
            self._asking = loop.run_in_executor(None, is_folder, self._folder)
        done, _ = await asyncio.wait({self._asking}, timeout=self._limit_seconds)
        return any(answer.result() for answer in done)


def is_folder(path: Path) -> bool:
    """Return whether ``path`` is a folder, as far as the file system says; blocks."""
    try:
        return path.is_dir()
    except OSError:  # a name longer than it has, or nobody may look
        return False
