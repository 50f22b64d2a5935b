"""One slot as the service knows it: in one of three states, each with the data that belongs to it.

A model that serves may meet a fault that lasts (the file was changed, the disk is gone), which its worker
knows. A worker is not closed before the requests that use it end.
"""

import asyncio
import contextlib
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import Literal, Self
from urllib.parse import quote

from models.packs.pack import Pack
from pipeline.budget.errors import RefusedError
from pipeline.fitting.wanted import PlanResult
from server.codec.messages import Signature
from server.errors import LoadingError, NotLoadedError, NotServingError
from server.faults import Code, Fault
from server.repository.fleet import Place
from server.repository.on_disk import Slot
from server.repository.planning_threads import SearchProgress
from server.repository.preparing import Prepared
from server.repository.worker import Worker


class Uses:
    """Counts the requests that use one model as it is loaded now."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._count = 0
        self._over: asyncio.Future[None] | None = None
        #: When a request began or ended last; before the first one, when the model was loaded.
        self.used_at = clock()

    def __len__(self) -> int:
        return self._count

    @property
    def idle_seconds(self) -> float:
        """Seconds since a request started or ended last."""
        return self._clock() - self.used_at

    def begin(self) -> None:
        """Count one more."""
        self._count += 1
        self.used_at = self._clock()

    def end(self) -> None:
        """Count one less."""
        self._count -= 1
        self.used_at = self._clock()
        if not self._count and self._over is not None and not self._over.done():
            self._over.set_result(None)

    async def over(self, limit_seconds: float) -> None:
        """Wait until no request uses it any more, but no longer than ``limit_seconds``."""
        if not self._count or not limit_seconds:
            return
        self._over = asyncio.get_running_loop().create_future()
        await asyncio.wait({self._over}, timeout=limit_seconds)


@dataclass
class Use:
    """A request's use of a model: ``worker`` answers, and is not closed before ``uses`` says that it ends.

    Of a model that was evicted there is what is on disk, and neither. ``signature``: what it takes and
    gives. ``infer_bytes``: what a request with tensors holds whose JSON is short. ``timeout_seconds``: as
    Entry has it.
    """

    pack: Pack
    signature: Signature
    infer_bytes: int
    timeout_seconds: float | None
    worker: Worker | None = None
    uses: Uses | None = None


State = Literal["READY", "LOADING", "UNAVAILABLE"]
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
    """It has no engine. ``cause``: refused for want of budget, unloaded by request, evicted, or failed.

    An evicted model was closed to make room for another one; the next request loads it again.

    ``fault``: why, and whether the next try may succeed although no file and no setting was changed.
    ``is_lost``: its memory can never be used again, since a disk may still write to it, and only a restart
    of the process helps; else it holds nothing.
    """

    fault: Fault = _NEVER_LOADED
    cause: Absence = "failed"
    is_lost: bool = False

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
    """It is being planned, then read and opened (``step``); ``progress``: how far planning is."""

    step: str = "planning"
    progress: SearchProgress = field(default_factory=SearchProgress)
    cause: Absence = "loading"

    @property
    def fault(self) -> Fault:
        """The step, and how far it is."""
        progress = self.progress.said if self.step == "planning" else ""
        why = f"loading: {self.step}{progress and f', {progress}'}"
        return Fault(Code.LOADING, why, permanent=False)


@dataclass(frozen=True)
class Serving:
    """It has a worker. ``prepared`` and ``place``: the model that is loaded, and its plan."""

    worker: Worker
    prepared: Prepared
    place: Place

    @property
    def fault(self) -> Fault | None:
        """What keeps it from answering; None while it answers."""
        return self.worker.fault

    @property
    def cause(self) -> Absence | None:
        return "failed" if self.fault else None


Condition = Unloaded | Loading | Serving


def how_to_load(model: str) -> str:
    """Return the hint for clients about a model that can be loaded."""
    return f"; POST /v2/repository/models/{quote(model)}/load loads it"


@dataclass
class Entry:
    """One slot by ``name`` (on_disk.py); ``model``: its model, where that has another name.

    ``slot``, ``version``: of the last load, or of the last try; ``weight_bytes``: of the last load.
    ``most_bytes``: the limit of its memory; None: its share of the budget. ``refusals``, ``evictions``,
    ``cold_starts``, ``cold_start_seconds``: how often it was refused for want of budget, was evicted, was
    loaded for a request, and how long the latter took. ``uses``: of the model that is loaded, or of the
    next one while none is. ``desired_until``: until when it is to be
    loaded for requests that were refused since that takes longer than they had, on time.monotonic's clock.
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

    @property
    def is_lost(self) -> bool:
        """Whether its memory can never be used again."""
        return isinstance(self.condition, Unloaded) and self.condition.is_lost

    def serve(self, worker: Worker, prepared: Prepared, place: Place) -> None:
        """Let ``worker`` answer from now on, also the requests that wait for the model."""
        self.become(Serving(worker, prepared, place))
        if self.coming is not None:
            self.coming.set_result(None)
            self.coming = None
        self.take(prepared.slot)
        self.weight_bytes = prepared.pack.manifest.weight_bytes

    def note(self, exc: Exception) -> None:
        """Note the error ``exc`` of a try to load it, which ended before it had started.

        A version that serves goes on. An evicted one stays so: the client that asked for it gets the error.
        """
        condition = self.condition
        if isinstance(condition, Serving) and condition.fault:
            condition.worker.served.leave(Fault.of(exc))
        elif isinstance(condition, Unloaded) and not self.evicted:
            self.become(Unloaded.after(exc))

    def take(self, slot: Slot) -> None:
        """Note that the pack in ``slot`` is tried, or serves."""
        self.slot, self.version = slot, slot.folder.name
        self.timeout_seconds = self.deadline or slot.config.default_timeout_seconds

    def read(self) -> None:
        """Note, if it is loading, that it has been planned and its weights are read now."""
        if isinstance(self.condition, Loading):
            self.condition.step = "reading weights"

    def serving(self) -> Serving:
        """Return the state in which it answers.

        Raises:
            NotLoadedError: it was unloaded by request. RefusedError, NotServingError: it does not answer.
        """
        condition = self.condition
        if isinstance(condition, Serving) and not condition.fault:
            return condition
        raise _ABSENT.get(self.absence, NotServingError)(self.message + self._remedy)

    def use(self) -> Use:
        """Return a use that begins now; raises as ``serving``."""
        serving = self.serving()
        self.uses.begin()
        model, seconds = serving.prepared, self.timeout_seconds
        takes = model.signature, model.infer_bytes
        return Use(model.program.pack, *takes, seconds, serving.worker, self.uses)

    def move(self, place: Place) -> None:
        """Note that it has been opened again with the plan ``place``."""
        if isinstance(self.condition, Serving):
            self.become(replace(self.condition, place=place))

    def know(self, prepared: Prepared) -> None:
        """Plan the model that serves by ``prepared`` from now on: the same, with more measurements."""
        if isinstance(self.condition, Serving):
            self.become(replace(self.condition, prepared=prepared))

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
    def worker(self) -> Worker | None:
        return self.condition.worker if isinstance(self.condition, Serving) else None

    @property
    def prepared(self) -> Prepared | None:
        return self.condition.prepared if isinstance(self.condition, Serving) else None

    @property
    def place(self) -> Place | None:
        return self.condition.place if isinstance(self.condition, Serving) else None

    @property
    def pack(self) -> Pack | None:
        """The pack that is loaded."""
        return None if self.prepared is None else self.prepared.pack

    @property
    def fitted(self) -> PlanResult | None:
        return None if self.place is None else self.place.fitted

    @property
    def serves(self) -> bool:
        return isinstance(self.condition, Serving) and not self.condition.fault

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
    def state(self) -> State:
        if isinstance(self.condition, Loading):
            return "LOADING"
        return "READY" if self.serves else "UNAVAILABLE"

    @property
    def absence(self) -> Absence | None:
        """Why it does not serve, in a word; None while it does."""
        return self.condition.cause

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
