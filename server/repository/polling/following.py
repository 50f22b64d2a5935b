"""Has the service follow its repository once, because somebody asks for it."""

import logging

from server.failures import FAILURES
from server.repository.repository import Repository

_log = logging.getLogger(__name__)


async def follow(repository: Repository) -> None:
    """Let what is gone go, and take what is new or another; who asks says that all of it is whole.

    What somebody has unloaded stays away, and what was evicted until a request comes. What fails is in
    the log.

    Raises:
        NotFoundError: there is no repository any more; nothing has changed.
    """
    there = repository.names()
    for name in sorted({entry.model for entry in repository.entries()}.difference(there)):
        await repository.remove(name)
    for name in repository.served():
        if not repository.is_unloaded(name) and not repository.is_evicted(name):
            try:
                await repository.load(name)
            except FAILURES as exc:
                _log.error("not served: model %s: %s", name, exc)
