"""From a plan to a model that serves: reserve memory, read weights, start the worker."""

import contextlib
import logging
from pathlib import Path

from models.text.tokenizer import Tokenizer
from pipeline.budget.budget import Budget
from pipeline.budget.sharing import Activations
from pipeline.execution.errors import DrainError
from pipeline.profiles.profile_file import FILE
from server.errors import few
from server.repository.environment import RepositoryEnvironment
from server.repository.fleet import Place
from server.repository.on_disk import Slot
from server.repository.preparing import Prepared, batching_of, naming
from server.repository.served_engine import Running
from server.repository.worker import Worker
from server.requests.waiting import in_thread
from server.scheduling.dispatcher import Dispatcher
from server.settings.settings import Settings

_log = logging.getLogger(__name__)

# The messages do not say how much a profile gains: that depends on the machine.
_NO_PROFILE = (
    "model %s has no profile: its plans follow estimates and its delay is not predicted; "
    "`layerstream profile %s` measures this machine, load the model again afterwards"
)
_NO_PROFILES = (
    "%d models have no profile (%s): their plans follow estimates and their delay is not "
    "predicted; `layerstream profile %s` measures one on this machine, load it again afterwards"
)


class Opener:
    """Opens packs as the settings say, inside ``budget``."""

    def __init__(
        self, settings: Settings, budget: Budget, environment: RepositoryEnvironment
    ) -> None:
        self._settings = settings
        self._budget = budget
        self._environment = environment
        self._dispatcher = Dispatcher()
        #: For the activations of models that compute in turns; None: each has its own.
        self._arena = environment.shared_arena(budget.total_bytes)
        #: Packs without a profile, and their models; those of them that the log has named.
        self._unprofiled: dict[Path, str] = {}
        self._named: set[Path] = set()
        #: As the settings say, but "own" if the device cannot share activations.
        self.activations: Activations = settings.activations if self._arena else "own"

    async def open(self, key: str, model: Prepared, place: Place) -> Worker:
        """Reserve memory under ``key``, read ``model`` and start it with the plan ``place``.

        After all errors but DrainError nothing stays reserved, and no thread is left.

        Raises:
            RefusedError: it does not fit. NotServingError: the system has not the memory, or refuses its
            files. LoaderError, DeviceError: its pack is damaged, or is not for this machine. DrainError: a
            read never ended; its memory stays reserved.
        """
        return await in_thread(self._open, key, model, place)

    def _open(self, key: str, model: Prepared, place: Place) -> Worker:
        """Do as ``open``; blocks."""
        name = model.slot.name
        with naming(name):
            self._budget.reserve(key, place.fitted.plan.memory, place.in_turns)
            try:
                # Before the engine: a library that is missing is said before weights are read.
                tokenizer = self._environment.open_tokenizer(model.pack)
                worker = self._started(self._running(model, place), model.slot, tokenizer)
            except DrainError:
                raise  # the disk may still write to the reserved memory
            except BaseException:
                self._budget.release(key)
                raise
        with contextlib.suppress(OSError):  # a file that only a log line needs
            if not (model.pack.folder / FILE).exists():
                self._unprofiled[model.pack.folder] = name
        return worker

    def _started(self, running: Running, slot: Slot, tokenizer: Tokenizer | None) -> Worker:
        """Return a worker of ``running``; if it cannot start, close the engine.

        Raises:
            RuntimeError: the system gives no thread. DrainError: a read of the engine never ended.
        """
        batching = batching_of(self._settings, slot)
        try:
            return self._environment.worker(running, self._dispatcher, batching, tokenizer)
        except BaseException as exc:
            running.engine.close()
            if running.engine.broken:
                raise DrainError(running.engine.broken) from exc
            raise

    def log_unprofiled(self) -> None:
        """Log which models that were opened have no profile, in one line, and each pack once."""
        opened = list(self._unprofiled.items())  # threads may add to it
        new = {folder: name for folder, name in opened if folder not in self._named}
        self._named.update(new)
        if len(new) == 1:
            ((folder, name),) = new.items()
            _log.info(_NO_PROFILE, name, folder)
        elif new:
            _log.info(_NO_PROFILES, len(new), few(list(new.values())), next(iter(new)))

    def reopen(self, name: str, model: Prepared, place: Place) -> Running:
        """Open ``model``, whose engine has been closed, with another plan; blocks.

        Raises:
            As ``open``; the reservation may be that of the new plan or of the one before.
        """
        self._environment.trim_heap()
        with naming(name):
            self._budget.change(name, place.fitted.plan.memory, place.in_turns)
            return self._running(model, place)

    def close(self) -> None:
        """Give back the arena that models share, after all of them were closed."""
        if self._arena is not None:
            self._arena.close()

    def _running(self, model: Prepared, place: Place) -> Running:
        """Open an engine with the plan ``place``; blocks."""
        arena = self._arena if place.in_turns else None
        return self._environment.open_engine(model.opened, place.fitted, arena)
