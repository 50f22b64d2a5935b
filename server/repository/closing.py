"""Models that go: they finish their requests, and give their memory back where it can be used again."""

import logging
import threading
from collections.abc import Coroutine
from typing import Any

from models.runtime.heap import trim_heap
from server.memory.budget import Budget
from server.repository.entry import Absence, Entry, Lost, Unloaded
from server.repository.uses import Uses
from server.repository.worker import Worker
from server.requests.uninterrupted import to_its_end

_log = logging.getLogger(__name__)


class Closing:
    """Closes what serves; ``budget`` has reserved its memory."""

    def __init__(self, budget: Budget) -> None:
        self._budget = budget
        #: What no entry has any more, until the requests that it accepted are answered.
        self.leaving: set[Worker] = set()
        #: What was given up, until it ends.
        self.left_behind: set[Worker] = set()

    async def close(
        self, entry: Entry, why: str, cause: Absence = "failed", patience_seconds: float = 0.0
    ) -> None:
        """Let ``entry``, if it is loaded, finish its requests, and give its memory back.

        ``patience_seconds``: how long those may take that have found it and are still being read. Runs to
        its end even when cancelled: what nobody can close any more would stay reserved.
        """
        worker = entry.worker
        if not isinstance(entry.condition, Lost):
            entry.condition = Unloaded(why, cause)
        if worker is None:
            return
        uses, entry.uses = entry.uses, Uses()
        # What is stuck does not end; nor do the requests that it had.
        patience = 0.0 if worker.abandoned else patience_seconds
        await to_its_end(self._closed(entry, worker, uses.over(patience)))

    def _leave_behind(self, name: str, worker: Worker) -> None:
        """Keep what a stuck engine holds reserved until it ends, beside what ``name`` takes anew."""
        apart = self._budget.set_apart(name, "stuck")
        self.left_behind.add(worker)

        def wait() -> None:
            worker.wait()
            self.left_behind.discard(worker)
            if not worker.engine.broken:
                self._budget.release(apart)
                trim_heap()

        # Nobody waits for it, the end of the process neither.
        threading.Thread(target=wait, name=f"left-{name}", daemon=True).start()

    async def _closed(
        self, entry: Entry, worker: Worker, unused: Coroutine[Any, Any, None]
    ) -> None:
        await unused
        lost = await self.ended(entry.name, worker)
        if lost:
            entry.condition = Lost(lost)
        else:
            self._budget.release(entry.name)
        trim_heap()

    async def ended(self, name: str, worker: Worker) -> str:
        """Close ``worker``; return why its memory can never be used again, empty where it can.

        The memory of a broken engine is still the disk's; that of a stuck one stands apart until it ends.
        """
        self.leaving.add(worker)
        try:
            await worker.close()
        except Exception as exc:  # noqa: BLE001  the other models go on
            _log.exception("model %s cannot be closed", name)
            return f"it could not be closed: {exc}"
        finally:
            self.leaving.remove(worker)
        if worker.abandoned:
            self._leave_behind(name, worker)
            return ""
        return worker.engine.broken or worker.served.lost
