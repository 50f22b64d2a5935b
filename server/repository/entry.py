"""One slot as the service knows it: the instance that answers requests to it, or why there is none.

An instance that serves may meet a fault that lasts (the file was changed, the disk is gone): then the slot
has it until it is closed. That is not before the requests that use it end.
"""

import asyncio
import contextlib
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Literal, Self
from urllib.parse import quote

from models.packs.pack import Pack
from pipeline.budget.errors import RefusedError
from pipeline.fitting.wanted import PlanResult
from server.codec.messages import Signature
from server.errors import LoadingError, NotLoadedError, NotServingError
from server.faults import Code, Fault
from server.repository.fleet import Place
from server.repository.instances import Instance, State, Uses
from server.repository.on_disk import Slot
from server.repository.planning_threads import SearchProgress
from server.repository.preparing import Prepared
from server.repository.worker import Worker


@dataclass
class Use:
    """A request's use of the model that it has found: ``worker`` answers, and is not closed before its end.

    Of a model that is away there is what is on disk, and no worker before Repository.acquire.
    ``signature``: what it takes and gives. ``infer_bytes``: what a request with tensors holds whose JSON is
    short. ``timeout_seconds``: as Entry has it.
    """

    pack: Pack
    signature: Signature
    infer_bytes: int
    timeout_seconds: float | None
    worker: Worker | None = None
    uses: Uses | None = None
    _in_parts: bool = False

    def begin_parts(self) -> None:
        """Note that the answer is made in parts: a model that is unloaded makes all of them first."""
        if self.uses is not None and not self._in_parts:
            self._in_parts = True
            self.uses.begin_parts()

    def end(self) -> None:
        """Let the model go."""
        if self.uses is not None:
            self.uses.end(in_parts=self._in_parts)


IndexState = Literal["READY", "LOADING", "UNAVAILABLE"]
#: Why a model does not serve, in a word for metrics; "failed" for all other reasons.
Absence = Literal["loading", "refused", "evicted", "unloaded", "failed"]

# The errors of requests to a model that does not serve; others are NotServingError.
_ABSENT: dict[Absence | None, type[Exception]] = {
    "loading": LoadingError,
    "refused": RefusedError,
    "unloaded": NotLoadedError,
}


_NEVER_LOADED = Fault(Code.NOT_LOADED, "not loaded")


@dataclass(frozen=True)
class Unloaded:
    """It has no instance. ``cause``: refused for want of budget, unloaded by request, evicted, or failed.

    An evicted model was closed to make room for another one; the next request loads it again.

    ``fault``: why, and whether the next try may succeed although no file and no setting was changed.
    """

    fault: Fault = _NEVER_LOADED
    cause: Absence = "failed"

    @classmethod
    def after(cls, exc: Exception, *, was_evicted: bool = False) -> Self:
        """Return the state of a model after its loading ended with ``exc``."""
        cause: Absence = "refused" if isinstance(exc, RefusedError) else "failed"
        fault = Fault.of(exc).settled
        if was_evicted and (cause == "refused" or not fault.permanent):
            cause = "evicted"  # the next request tries again
        return cls(fault, cause)


@dataclass
class Loading:
    """It is checked and planned; ``progress``: how far planning is."""

    progress: SearchProgress = field(default_factory=SearchProgress)
    cause: Absence = "loading"

    @property
    def fault(self) -> Fault:
        """What is done, and how far it is."""
        progress = self.progress.said
        message = f"loading: planning{progress and f', {progress}'}"
        return Fault(Code.LOADING, message, permanent=False)


Condition = Unloaded | Loading | Instance


def how_to_load(model: str) -> str:
    """Return the hint for clients about a model that can be loaded."""
    return f"; POST /v2/repository/models/{quote(model)}/load loads it"


@dataclass
class Entry:
    """One slot by ``name`` (on_disk.py); ``model``: its model, where that has another name.

    ``slot``, ``version``: of the last load, or of the last try; ``weight_bytes``: of the last load.
    ``most_bytes``: the limit of its memory; None: its share of the budget. ``refusals``, ``evictions``,
    ``cold_starts``, ``cold_start_seconds``: how often it was refused for want of budget, was evicted, was
    loaded for a request, and how long the latter took. ``uses``: the requests that use its instance, or
    wait for the next one while there is none, which then use that. ``desired_until``: until when it is to
    be loaded for requests that were refused since that takes longer than they had, on time.monotonic's
    clock.
    ``coming``: the future for which requests wait while it is away for a moment.
    ``deadline``: the setting; ``timeout_seconds``: that, or the value of its own configuration, for
    requests that have no timeout; None: the server's limit.
    """

    name: str
    model: str = ""
    condition: Condition = Unloaded()
    version: str | None = None
    weight_bytes: int = 0
    slot: Slot | None = None
    most_bytes: int | None = None
    refusals: int = 0
    evictions: int = 0
    cold_starts: int = 0
    cold_start_seconds: float = 0.0
    uses: Uses = field(default_factory=Uses)
    desired_until: float = 0.0
    coming: "asyncio.Future[None] | None" = None
    deadline: float | None = None

    def __post_init__(self) -> None:
        self.model = self.model or self.name
        self.timeout_seconds = self.deadline

    def become(self, condition: Condition) -> None:
        """Go to another state; a lost one stays lost."""
        if not self.is_lost:
            self.condition = condition

    def leave(self, fault: Fault, cause: Absence) -> Instance | None:
        """Have no instance any more, and return the one that it had; later requests wait for the next."""
        before = self.instance
        self.become(Unloaded(fault, cause))
        if before is not None:
            self.uses = Uses()
        return before

    @property
    def is_lost(self) -> bool:
        """Whether its memory can never be used again."""
        condition = self.condition
        return isinstance(condition, Instance) and condition.state is State.LOST

    def serve(self, instance: Instance) -> None:
        """Let ``instance`` answer from now on, also the requests that wait for the model."""
        self.condition, self.uses = instance, instance.uses
        if self.coming is not None:
            self.coming.set_result(None)
            self.coming = None
        self.take(instance.prepared.slot)
        self.weight_bytes = instance.prepared.pack.manifest.weight_bytes

    def note(self, exc: Exception) -> None:
        """Note the error ``exc`` of a try to load it, which ended before it had started.

        A version that serves goes on. An evicted one stays so: the client that asked for it gets the error.
        """
        worker = self.worker
        if worker is not None and worker.fault:
            worker.served.leave(Fault.of(exc))
        elif isinstance(self.condition, Unloaded) and not self.evicted:
            self.become(Unloaded.after(exc))

    def take(self, slot: Slot) -> None:
        """Note that the pack in ``slot`` is tried, or serves."""
        self.slot, self.version = slot, slot.folder.name
        self.timeout_seconds = self.deadline or slot.config.default_timeout_seconds

    def serving(self) -> Instance:
        """Return the instance that answers.

        Raises:
            NotLoadedError: it was unloaded by request. RefusedError, NotServingError: it does not answer.
        """
        condition = self.condition
        if isinstance(condition, Instance) and condition.serves:
            return condition
        raise _ABSENT.get(self.absence, NotServingError)(self.message + self._remedy)

    def use(self) -> Use:
        """Return a use that begins now; raises as ``serving``."""
        serving = self.serving()
        serving.uses.begin()
        model, seconds = serving.prepared, self.timeout_seconds
        takes = model.signature, model.infer_bytes
        return Use(model.program.pack, *takes, seconds, serving.worker, serving.uses)

    def has(self, slot: Slot) -> bool:
        """Return whether it serves the pack in ``slot``."""
        return self.serves and self.slot is not None and self.slot.seen == slot.seen

    @contextlib.contextmanager
    def coming_back(self) -> Iterator[None]:
        """Let requests wait inside this context, unless they wait already."""
        if self.coming is not None:
            yield
            return
        coming = self.coming = asyncio.get_running_loop().create_future()
        try:
            yield
        finally:
            if self.coming is coming:  # the model was not loaded
                coming.set_result(None)
                self.coming = None

    @property
    def next_key(self) -> str:
        """The name under which its next instance holds memory, until the one before it is closed."""
        return self.name if self.instance is None else f"{self.name} (next)"

    @property
    def evicted(self) -> bool:
        """Whether the next request loads it again."""
        # Every request asks this, so not by ``absence``, which looks for faults of the engine as well.
        condition = self.condition
        return isinstance(condition, Unloaded) and condition.cause == "evicted"

    def is_idle(self, seconds: float) -> bool:
        """Whether it serves and no request has used it for so many ``seconds``."""
        return self.serves and not self.uses and self.uses.idle_seconds >= seconds

    @property
    def is_desired(self) -> bool:
        """Whether requests use it, wait for it, or would have waited."""
        return len(self.uses) > 0 or time.monotonic() < self.desired_until

    @property
    def answers(self) -> bool:
        """Whether a request gets an answer, at once or when the model was loaded again."""
        return self.serves or (self.worker is None and (self.evicted or self.coming is not None))

    @property
    def instance(self) -> Instance | None:
        """The instance that answers, or that has left service; None also where one is opened, or lost."""
        condition = self.condition
        return condition if isinstance(condition, Instance) and condition.worker else None

    @property
    def worker(self) -> Worker | None:
        return None if self.instance is None else self.instance.worker

    @property
    def prepared(self) -> Prepared | None:
        return None if self.instance is None else self.instance.prepared

    @property
    def place(self) -> Place | None:
        return None if self.instance is None else self.instance.place

    @property
    def pack(self) -> Pack | None:
        """The pack that is loaded."""
        return None if self.prepared is None else self.prepared.pack

    @property
    def fitted(self) -> PlanResult | None:
        return None if self.place is None else self.place.fitted

    @property
    def serves(self) -> bool:
        return isinstance(self.condition, Instance) and self.condition.serves

    @property
    def may_pass(self) -> bool:
        """Whether it is to serve, does not, and the next try to load it may succeed as things are."""
        fault = self.fault
        return fault is not None and not fault.permanent and self.absence in {"failed", "refused"}

    @property
    def may_change(self) -> bool:
        """Whether it is to serve, and cannot be loaded before its files are others."""
        fault = self.fault
        is_sure = fault is not None and fault.permanent and not self.is_lost
        return bool(is_sure) and self.absence == "failed" and self.slot is not None

    @property
    def state(self) -> IndexState:
        if self.is_loading:
            return "LOADING"
        return "READY" if self.serves else "UNAVAILABLE"

    @property
    def is_loading(self) -> bool:
        """Whether it is planned or opened now; not where it waits for its turn."""
        condition = self.condition
        is_opening = isinstance(condition, Instance) and condition.state is State.OPENING
        return is_opening or isinstance(condition, Loading)

    @property
    def absence(self) -> Absence | None:
        """Why it does not serve, in a word; None while it does."""
        condition = self.condition
        if not isinstance(condition, Instance):
            return condition.cause
        if condition.serves:
            return None
        return "loading" if condition.state is State.OPENING else "failed"

    @property
    def fault(self) -> Fault | None:
        """Why it does not serve; None while it does."""
        return self.condition.fault

    @property
    def reason(self) -> str:
        """Why it does not serve, in words; empty while it does."""
        return self.fault.message if self.fault else ""

    @property
    def _remedy(self) -> str:
        """How to load it again if a client has unloaded it; else nothing."""
        return how_to_load(self.model) if self.absence == "unloaded" else ""

    @property
    def message(self) -> str:
        """Why it does not serve, with its name."""
        named = f"model {self.name!r}"
        return self.reason if self.reason.startswith(named) else f"{named}: {self.reason}"
