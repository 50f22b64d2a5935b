"""The one budget over all models: how much of it each model holds, by kind.

Invariant: the sum of all reservations never exceeds the budget. Metrics may read it while a thread loads a
model, so the mapping of holdings is replaced and never changed.
"""

import itertools
import threading
from collections.abc import Collection, Iterable, Mapping, Sequence

from models.sizes import format_least, format_size, parse_size
from pipeline.budget.errors import RefusedError
from pipeline.budget.holdings import Allocations, Holding
from pipeline.budget.request_needs import Need, pool_bytes, smallest_budget

# Words for the kinds of ``Plan.memory`` in messages to users.
_WORDS = {
    "staging": "weights",
    "ring": "weights",
    "resident": "weights",
    "arena": "activations",
    "scratch": "the scratch of kernels",
    "io": "inputs and outputs",
    "sessions": "ONNX Runtime",
    "objects": "Python",
    "tokenizer": "the tokenizer",
}


class Budget:
    """A ledger of ``total_bytes``: what each model holds, and what requests may take.

    ``ceiling_bytes``: how much of it may be used now, less where the system lacks memory. Plans are made
    within the ceiling, while what is held already may exceed it until models have given it back.
    """

    def __init__(self, total_bytes: int) -> None:
        self.total_bytes = self.ceiling_bytes = total_bytes
        #: Set aside for requests to all models.
        self.request_bytes = 0
        #: The needs that decide ``request_bytes`` where no setting does: then it grows with the budget.
        self._needs: Sequence[Need] = ()
        self._held = Allocations()
        self._changing = threading.Lock()

    @property
    def shared_bytes(self) -> Mapping[str, int]:
        """What models that compute in turns share, by kind."""
        return self._held.shared

    @property
    def used_bytes(self) -> int:
        return self.request_bytes + self._held.n_bytes

    @property
    def free_bytes(self) -> int:
        """What may be held in addition; negative where the ceiling is exceeded."""
        return self.ceiling_bytes - self.used_bytes

    @property
    def exceeded_bytes(self) -> int:
        """By how much what is held exceeds the ceiling."""
        return max(-self.free_bytes, 0)

    @property
    def is_lowered(self) -> bool:
        return self.ceiling_bytes < self.total_bytes

    def reserve(self, name: str, memory: Mapping[str, int], in_turns: bool = False) -> None:
        """Reserve ``memory``, bytes by kind, for ``name``. ``in_turns``: as of Holding.

        Raises:
            RefusedError: it is not free; nothing has changed.
        """
        holding = Holding(memory, in_turns)
        with self._changing:
            added = self._held.added(holding)
            if self.used_bytes + sum(added.values()) > self.total_bytes:
                others = self.used_bytes - self.request_bytes
                all_bytes = others + sum(added.values())
                raise refusal(name, added, self, all_bytes, bool(self._held))
            self._held = self._held.having(name, holding)

    def change(self, name: str, memory: Mapping[str, int], in_turns: bool = False) -> None:
        """Reserve ``memory`` in place of what ``name`` holds; raises as ``reserve``."""
        holding = Holding(memory, in_turns)
        with self._changing:
            changed = self._held.having(name, holding)
            if self.request_bytes + changed.n_bytes > self.total_bytes:
                raise refusal(name, memory, self, changed.n_bytes, len(changed) > 1)
            self._held = changed

    def added(self, holding: Holding) -> dict[str, int]:
        """Return the bytes by kind that one more model adds: of shared kinds what exceeds the largest."""
        return self._held.added(holding)

    def used_with(self, allocations: Iterable[Holding]) -> int:
        """Return the bytes that would be used if ``allocations`` were reserved, too."""
        reserved = self._held
        for position, allocation in enumerate(allocations):
            reserved = reserved.having(f"({position})", allocation)
        return self.request_bytes + reserved.n_bytes

    def set_aside(self, chosen: int | None, needs: Sequence[Need], model_bytes: int = 0) -> None:
        """Set memory aside for requests: ``chosen`` bytes, or what follows from total and ``needs``.

        ``model_bytes``: what the models that are to fit beside them take at least.

        Raises:
            RefusedError: they are not free; nothing has changed.
        """
        n_bytes = pool_bytes(self.total_bytes, needs, model_bytes) if chosen is None else chosen
        with self._changing:
            free = self.total_bytes - self._held.n_bytes
            if n_bytes > free:
                enough = (
                    smallest_budget(model_bytes, needs) if chosen is None else chosen + model_bytes
                )
                raise RefusedError(
                    f"requests take {format_size(n_bytes)} (setting request_memory); free are "
                    f"{format_size(free)} of a budget of {format_size(self.total_bytes)}; a budget "
                    f"of {format_least(enough)} is enough for all models and requests to them"
                )
            self.request_bytes, self._needs = n_bytes, needs if chosen is None else ()

    def release(self, name: str) -> None:
        """Give back what ``name`` holds, if anything."""
        with self._changing:
            self._held = self._held.without([name])

    def rename(self, name: str, other: str) -> None:
        """Let the holding of ``name`` stand under ``other``, which holds nothing."""
        with self._changing:
            self._rename(name, other)

    def set_apart(self, name: str, why: str) -> str:
        """Move the holding of ``name`` to a new name, which is returned; ``name`` may then hold more."""
        with self._changing:
            names = (f"{name} ({why} {number})" for number in itertools.count(1))
            apart = next(other for other in names if other not in self._held)
            self._rename(name, apart)
            return apart

    def _rename(self, name: str, other: str) -> None:
        self._held = self._held.renamed(name, other)

    def without(self, names: Collection[str]) -> "Budget":
        """Return a copy in which ``names`` hold nothing, for planning."""
        budget = Budget(self.total_bytes)
        budget.ceiling_bytes = self.ceiling_bytes
        budget.request_bytes, budget._needs = self.request_bytes, self._needs
        budget._held = self._held.without(names)
        return budget

    def total_for(self, model_bytes: int) -> int:
        """Return the smallest total in which models that take ``model_bytes`` and their requests fit."""
        if self._needs:
            return smallest_budget(model_bytes, self._needs)
        return model_bytes + self.request_bytes

    def held(self) -> dict[str, dict[str, int]]:
        """Return what each model holds, bytes by model and kind, also where it shares them."""
        return {name: dict(holding.memory) for name, holding in self._held.items()}

    def account(self) -> dict[str, dict[str, int]]:
        """Return bytes by model and kind, each byte once: shared ones under SHARED."""
        return self._held.account()


def refusal(
    name: str,
    memory: Mapping[str, int],
    budget: Budget,
    all_bytes: int,
    has_others: bool = False,
    remedy: str = "",
) -> RefusedError:
    """Return the error that says how much is missing and which budget would do.

    ``memory``: what the model needs, bytes by kind; ``all_bytes``: what all models need; ``has_others``:
    it is not the only one; ``remedy``: another way than a larger budget.
    """
    needed = sum(memory.values())
    for_all = " for all models that can be served" if has_others else ""
    enough = format_least(budget.total_for(all_bytes))
    # From the rounded budget, so that it is the difference of the two sizes in the message.
    excess = max(parse_size(enough) - budget.total_bytes, 0)
    free = max(budget.free_bytes, 0)
    if budget.is_lowered and parse_size(enough) <= budget.total_bytes:
        return RefusedError(
            f"model {name!r} does not fit now: needs {format_least(needed)} ({needed} bytes), free "
            f"{format_size(free)} ({free} bytes) of {format_size(budget.ceiling_bytes)}: the system lacks "
            f"memory, or its budget of {format_size(budget.total_bytes)} would be enough"
        )
    return RefusedError(
        f"model {name!r} does not fit in the budget: needs {format_least(needed)} "
        f"({needed} bytes), free {format_size(free)} "
        f"({free} bytes) of {format_size(budget.total_bytes)}; "
        f"it needs {_parts(memory)}; a budget of {enough} is enough{for_all} "
        f"(excess {format_size(excess)}){remedy}"
    )


def _parts(memory: Mapping[str, int]) -> str:
    """Return ``memory`` in words, the largest part first: 101.5 MiB for activations, ..."""
    parts: dict[str, int] = {}
    for kind, n_bytes in memory.items():
        words = _WORDS.get(kind, kind)
        parts[words] = parts.get(words, 0) + n_bytes
    largest = sorted(parts.items(), key=lambda part: -part[1])
    return ", ".join(f"{format_size(n_bytes)} for {words}" for words, n_bytes in largest if n_bytes)


def check_requests(name: str, need: Need, budget: Budget) -> None:
    """Refuse a model to which no request could be answered; ``need``: what requests to it take.

    Raises:
        RefusedError: what is set aside for requests is too little for one.
    """
    needed = need.tight_bytes
    if needed > budget.request_bytes:
        raise RefusedError(
            f"model {name!r}: one request to it takes {format_least(needed)} of memory, and all "
            f"together have {format_size(budget.request_bytes)} (setting request_memory)"
        )
