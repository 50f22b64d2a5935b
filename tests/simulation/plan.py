"""What clients and the disk do in a run: data, drawn from a seed, so that a failure can be cut down."""

import json
import random
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, Literal

#: "infer": a request. "load", "unload": of a model, by a client. "look": index and metrics.
Kind = Literal["infer", "load", "unload", "look"]
#: "error": EIO. "late": it takes ``seconds`` more. "short": the file ends. "wrong": a bit is flipped.
FaultKind = Literal["error", "late", "short", "wrong"]

MODELS = ("chain", "pair")
#: The longest delay of a read.
MAX_LATE_SECONDS = 15.0


@dataclass(frozen=True)
class Operation:
    """What a client does from ``start`` seconds on.

    ``timeout``: the deadline of a request, seconds. ``piece``: bytes that its client sends at once, and
    ``pause``: seconds between two. ``count``: requests that are sent at once, pipelined. ``leaves``: after
    so many seconds the client closes its connection; None: it waits for all answers. ``address``: the last
    number of its address.
    """

    start: float
    kind: Kind
    model: str = ""
    timeout: float = 5.0
    piece: int = 1 << 20
    pause: float = 0.0
    count: int = 1
    leaves: float | None = None
    address: int = 1


@dataclass(frozen=True)
class Fault:
    """What becomes of a read: the one of that number, counted from the start of the load."""

    read: int
    kind: FaultKind
    seconds: float = 0.0


@dataclass(frozen=True)
class Plan:
    """A run: settings of the service, operations, faults."""

    seed: int
    budget: int
    policy: str
    queue_limit: int
    connections: int
    operations: tuple[Operation, ...]
    faults: tuple[Fault, ...] = ()
    #: Choices of threads other than the usual ones, by number; None: they are drawn from the seed.
    choices: dict[int, int] | None = None

    @property
    def requests(self) -> int:
        """How many requests there are."""
        return sum(operation.count for operation in self.operations)

    def with_operations(self, operations: Sequence[Operation]) -> "Plan":
        """Return it with these instead."""
        return replace(self, operations=tuple(operations))

    def with_faults(self, faults: Sequence[Fault]) -> "Plan":
        """Return it with these instead."""
        return replace(self, faults=tuple(faults))

    def with_choices(self, choices: dict[int, int] | None) -> "Plan":
        """Return it with these instead."""
        return replace(self, choices=choices)

    def as_json(self) -> str:
        """Return it as the text of a file."""
        return json.dumps(asdict(self), indent=1)

    @classmethod
    def from_json(cls, text: str) -> "Plan":
        """Return the plan in the text of a file."""
        plan: dict[str, Any] = json.loads(text)
        choices = plan.pop("choices")
        operations = tuple(Operation(**entry) for entry in plan.pop("operations"))
        faults = tuple(Fault(**entry) for entry in plan.pop("faults"))
        choices = None if choices is None else {int(key): value for key, value in choices.items()}
        return cls(**plan, operations=operations, faults=faults, choices=choices)


#: What the models take at least, and with all their weights: budgets are drawn between and around.
ALL_FIT = 2_200_000  #: Budgets in which all models are served at once.
BUDGETS = (1_500_000, 1_800_000, 2_200_000, 3_000_000, 6_000_000)


def drawn(seed: int, requests: int = 100) -> Plan:
    """Return the plan of ``seed``: each has kinds of operations and faults, and limits, of its own."""
    rng = random.Random(seed)
    gap = rng.choice((0.0002, 0.001, 0.003, 0.02))
    others: list[Kind] = []
    if rng.random() < 0.6:
        others += ["load", "unload"]
    if rng.random() < 0.3:
        others += ["look"]
    share = rng.choice((0.02, 0.1, 0.3)) if others else 0.0
    timeouts = rng.sample((0.005, 0.02, 0.1, 0.5, 5.0), rng.randint(1, 3))
    pieces = rng.choice(((1 << 20,), (1 << 20, 2000), (100, 1000, 1 << 20)))
    pipelines, leaves = rng.random() < 0.3, rng.random() < 0.5
    operations: list[Operation] = []
    start, count = 0.0, 0
    while count < requests:
        start += rng.expovariate(1 / gap)
        kind: Kind = rng.choice(others) if rng.random() < share else "infer"
        operation = Operation(
            start=round(start, 6),
            kind=kind,
            model=rng.choice(MODELS),
            timeout=rng.choice(timeouts),
            piece=rng.choice(pieces),
            pause=rng.choice((0.0, 1e-4, 1e-3, 0.3)) if rng.random() < 0.2 else 0.0,
            count=rng.randint(2, 4) if pipelines and rng.random() < 0.1 else 1,
            leaves=round(rng.uniform(0, 0.02), 6) if leaves and rng.random() < 0.06 else None,
            address=rng.randint(1, 5),
        )
        operations.append(operation)
        count += operation.count
    return Plan(
        seed=seed,
        budget=rng.choice(BUDGETS),
        policy=rng.choice(("evict-lru", "refuse")),
        queue_limit=rng.choice((1, 4, 64)),
        connections=rng.choice((2, 8, 256)),
        operations=tuple(operations),
        faults=_faults(rng),
    )


def _faults(rng: random.Random) -> tuple[Fault, ...]:
    """Return no faults, or a few among the first reads."""
    if rng.random() < 0.5:
        return ()
    every: tuple[FaultKind, ...] = ("error", "late", "short", "wrong")
    kinds = rng.sample(every, rng.randint(1, 2))
    reads = sorted(rng.sample(range(600), rng.randint(1, 6)))
    return tuple(
        Fault(
            read,
            rng.choice(kinds),
            round(rng.choice((0.01, 0.2, 2.0, MAX_LATE_SECONDS)) * rng.random(), 6),
        )
        for read in reads
    )
