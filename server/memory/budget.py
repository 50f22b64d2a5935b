"""The one budget over all models: who holds how much of it, by kind.

Invariant: the sum of all reservations never exceeds the budget. A scrape reads it while a thread loads a
model: what is held is never changed, but replaced.
"""

import threading
from collections.abc import Mapping, Sequence

from models.packs.manifest import Manifest
from pipeline.fitting.fit import NOTHING, Fitted, check_profile, smallest_fitted
from pipeline.fitting.predict import Wanted
from pipeline.fitting.within import fit_within, least_plan
from pipeline.profiles.profile import Profile
from pipeline.schedule.architectures import Architecture
from server.errors import RefusedError
from server.memory.request_needs import Need, pool_bytes, smallest_budget
from server.settings.sizes import format_least, format_size

# The kinds of ``Plan.memory`` as users say them.
_WORDS = {
    "staging": "weights",
    "ring": "weights",
    "resident": "weights",
    "arena": "activations",
    "scratch": "the scratch of kernels",
    "io": "inputs and outputs",
    "sessions": "ONNX Runtime",
}


class Budget:
    """A ledger of ``total_bytes``: what each model holds, and what requests may take."""

    def __init__(self, total_bytes: int) -> None:
        self.total_bytes = total_bytes
        #: Set aside for requests, whatever model they go to.
        self.request_bytes = 0
        #: What decides it, where no setting does: it grows with the budget.
        self._needs: Sequence[Need] = ()
        self._held: Mapping[str, Mapping[str, int]] = {}
        self._changing = threading.Lock()

    @property
    def used_bytes(self) -> int:
        return self.request_bytes + sum(sum(kinds.values()) for kinds in self._held.values())

    @property
    def free_bytes(self) -> int:
        return self.total_bytes - self.used_bytes

    def reserve(self, name: str, memory: Mapping[str, int]) -> None:
        """Set aside ``memory``, bytes by kind, for ``name``.

        Raises:
            RefusedError: it is not free; nothing has changed.
        """
        needed = sum(memory.values())
        with self._changing:
            if needed > self.free_bytes:
                raise refusal(name, memory, self, self.used_bytes - self.request_bytes)
            self._held = {**self._held, name: dict(memory)}

    def set_aside(self, chosen: int | None, needs: Sequence[Need]) -> None:
        """Set memory aside for requests: ``chosen`` bytes, or what follows from total and ``needs``.

        Raises:
            RefusedError: they are not free; nothing has changed.
        """
        n_bytes = chosen or pool_bytes(self.total_bytes, needs)
        with self._changing:
            free = self.free_bytes + self.request_bytes
            if n_bytes > free:
                raise RefusedError(
                    f"requests take {format_size(n_bytes)} (setting request_memory); free are "
                    f"{format_size(free)} of a budget of {format_size(self.total_bytes)}"
                )
            self.request_bytes, self._needs = n_bytes, () if chosen else needs

    def release(self, name: str) -> None:
        """Give back what ``name`` holds, if anything."""
        with self._changing:
            self._held = {other: kinds for other, kinds in self._held.items() if other != name}

    def total_for(self, model_bytes: int) -> int:
        """Return the smallest total in which models that take ``model_bytes`` and their requests fit."""
        if self._needs:
            return smallest_budget(model_bytes, self._needs)
        return model_bytes + self.request_bytes

    def held(self) -> dict[str, dict[str, int]]:
        """Return what models hold: bytes by model and kind."""
        return {name: dict(kinds) for name, kinds in self._held.items()}


def refusal(
    name: str, memory: Mapping[str, int], budget: Budget, beside_bytes: int
) -> RefusedError:
    """Return the error that says how much is missing and which budget would do.

    ``memory``: what the model needs, bytes by kind; ``beside_bytes``: what the other models need.
    """
    needed = sum(memory.values())
    return RefusedError(
        f"model {name!r} does not fit in the budget: needs {format_least(needed)} "
        f"({needed} bytes), free {format_size(budget.free_bytes)} "
        f"({budget.free_bytes} bytes) of {format_size(budget.total_bytes)}; "
        f"it needs {_parts(memory)}; {_remedy(budget, needed, beside_bytes)}"
    )


def _remedy(budget: Budget, needed: int, beside_bytes: int) -> str:
    enough = budget.total_for(needed + beside_bytes)
    if enough <= budget.total_bytes:
        return "the others hold more than they need: unload them and load this one first"
    for_all = " for all models that can be served" if beside_bytes else ""
    return f"a budget of {format_least(enough)} is enough{for_all}"


def _parts(memory: Mapping[str, int]) -> str:
    """Return ``memory`` in words, the largest part first: 101.5 MiB for activations, ..."""
    parts: dict[str, int] = {}
    for kind, n_bytes in memory.items():
        words = _WORDS.get(kind, kind)
        parts[words] = parts.get(words, 0) + n_bytes
    largest = sorted(parts.items(), key=lambda part: -part[1])
    return ", ".join(f"{format_size(n_bytes)} for {words}" for words, n_bytes in largest if n_bytes)


def check_requests(name: str, manifest: Manifest, budget: Budget) -> None:
    """Refuse a model to which no request could be answered.

    Raises:
        RefusedError: what is set aside for requests is too little for one.
    """
    needed = Need.of(manifest).tight_bytes
    if needed > budget.request_bytes:
        raise RefusedError(
            f"model {name!r}: one request to it takes {format_least(needed)} of memory, and all "
            f"together have {format_size(budget.request_bytes)} (setting request_memory)"
        )


def fit(
    manifest: Manifest,
    architecture: Architecture,
    name: str,
    free: Budget,
    share: int,
    *,
    beside_bytes: int = 0,
    profile: Profile | None = None,
    wanted: Wanted = NOTHING,
) -> Fitted:
    """Return the best plan within ``share`` bytes, or the smallest plan; with a profile slowly.

    ``beside_bytes``: what other models need at least, for the refusal.

    Raises:
        RefusedError: not even the smallest one fits into what is free. PlanError: what is ``wanted``
            cannot be, or not without a profile. ProfileError: the profile lacks a kernel.
    """
    check_profile(manifest, architecture, wanted, profile)
    if wanted.ring_bytes is not None:
        chosen = smallest_fitted(manifest, architecture, wanted, profile)
        least = chosen.plan
    else:
        chosen, least = None, least_plan(manifest, architecture, profile, wanted.steps)
    if least.total_bytes > free.free_bytes:
        raise refusal(name, least.memory, free, beside_bytes)
    room = min(share, free.free_bytes)
    return chosen or fit_within(manifest, architecture, room, wanted, profile)
