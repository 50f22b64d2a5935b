"""One slot as the service knows it: loaded or not, serving or not, and why."""

import asyncio
from dataclasses import dataclass, field
from typing import Literal

from models.packs.pack import Pack
from pipeline.fitting.wanted import Fitted
from server.repository.layout.slots import Slot
from server.repository.opening import Prepared
from server.repository.replanning import Place
from server.repository.uses import Uses
from server.repository.worker import Worker

State = Literal["READY", "LOADING", "UNAVAILABLE"]
#: Why a model does not serve, in a word for metrics. "failed" is all that has no word of its own.
Absence = Literal["loading", "refused", "evicted", "unloaded", "failed"]


@dataclass
class Entry:
    """One slot by ``name`` (layout/slots.py); ``model``: whose it is, if it is not called as that.

    ``why`` it is not loaded; ``refused``: for want of budget; ``unloaded``: by request; ``evicted``: the
    next request loads it again; ``may_pass``: for a reason that may be gone at the next try, without
    anybody changing a file or a setting.
    ``lost``: why its memory, which a disk may still write to, can never be used again. ``version`` and
    ``weight_bytes``: of what was loaded last. ``prepared`` and ``place``: what is loaded, and
    what it is planned as; None while it is not. ``slot``: of what was loaded last. ``uses``: of what is
    loaded, and of what comes next while nothing is. ``coming``: what requests wait for while it is away
    for a moment.
    """

    name: str
    model: str = ""
    loading: bool = False
    why: str = "not loaded"
    refused: bool = False
    unloaded: bool = False
    evicted: bool = False
    may_pass: bool = False
    lost: str = ""
    version: str | None = None
    weight_bytes: int = 0
    prepared: Prepared | None = None
    place: Place | None = None
    worker: Worker | None = None
    slot: Slot | None = None
    uses: Uses = field(default_factory=Uses)
    coming: "asyncio.Future[None] | None" = None

    def take(self, worker: Worker, prepared: Prepared, place: Place) -> None:
        """Serve with ``worker``, which was opened of ``prepared`` as it is planned."""
        self.worker, self.prepared, self.place, self.slot = worker, prepared, place, prepared.slot
        self.version, self.weight_bytes = prepared.pack.version, prepared.pack.manifest.weight_bytes

    def __post_init__(self) -> None:
        self.model = self.model or self.name

    def has(self, slot: Slot) -> bool:
        """Return whether it serves what is in ``slot``."""
        return self.serves and self.slot is not None and self.slot.seen == slot.seen

    @property
    def answers(self) -> bool:
        """Whether a request gets an answer: at once, or when the model has come back."""
        return self.serves or (self.worker is None and (self.evicted or self.coming is not None))

    @property
    def pack(self) -> Pack | None:
        """What is loaded."""
        return None if self.prepared is None else self.prepared.pack

    @property
    def fitted(self) -> Fitted | None:
        return None if self.place is None else self.place.fitted

    @property
    def serves(self) -> bool:
        return self.worker is not None and not self.worker.fault

    @property
    def state(self) -> State:
        if self.loading:
            return "LOADING"
        return "READY" if self.serves else "UNAVAILABLE"

    @property
    def absence(self) -> Absence | None:
        """Why it does not serve; None while it does."""
        if self.loading:
            return "loading"
        if self.worker is not None:
            return "failed" if self.worker.fault else None
        if self.evicted:
            return "evicted"
        if self.refused:
            return "refused"
        return "unloaded" if self.unloaded else "failed"

    @property
    def reason(self) -> str:
        """Why it does not serve; empty while it does."""
        return self.why if self.worker is None else self.worker.fault

    @property
    def message(self) -> str:
        """Why it does not serve, with its name."""
        named = f"model {self.name!r}"
        return self.reason if self.reason.startswith(named) else f"{named}: {self.reason}"
