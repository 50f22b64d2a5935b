"""Has the service follow its repository once, because somebody asks for it."""

import logging

from loader.errors import LoaderError
from models.errors import ModelError
from pipeline.devices.base import DeviceError
from pipeline.execution.errors import EngineError
from pipeline.planning.plan import PlanError
from server.errors import ServiceError
from server.repository.repository import Repository

_log = logging.getLogger(__name__)

#: What keeps one model from being served, and nothing else.
FAILURES = (ServiceError, ModelError, LoaderError, PlanError, DeviceError, EngineError, OSError)


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
