"""Plans drawn from seeds: each with kinds of operations and faults, and limits, of its own (swarm testing).

Groce et al., "Swarm testing", ISSTA 2012: runs that leave some kinds out find more than runs with all.
"""

import random
from typing import Any

from tests.simulation.plan import ENDS, MODELS, CallFault, Fault, Kind, Operation, Plan, ReadFault

#: Bytes with which all models are served at once, beside those of requests,
ALL_FIT = 1_200_000
#: and from the least of one to the weights of all.
_BUDGETS = (450_000, 750_000, ALL_FIT, 2_000_000, 5_000_000)
#: The longest delay of a read.
MAX_LATE_SECONDS = 15.0
_CHANGES: tuple[Kind, ...] = (
    "load",
    "unload",
    "replan",
    "upload",
    "look",
    "publish",
    "remove",
    "damage",
)
_READS: tuple[ReadFault, ...] = ("error", "late", "short", "wrong", "stale", "misdirected")
_CALLS: tuple[CallFault, ...] = ("full", "frozen", "no memory", "no thread", "slow kernel")


def drawn(seed: int, requests: int = 100) -> Plan:
    """Return the plan of ``seed``, with so many ``requests`` at least."""
    rng = random.Random(seed)
    operations = _Operations(rng).drawn(requests)
    return Plan(
        seed=seed,
        connections=rng.choice((2, 8, 256)),
        settings=_settings(rng),
        operations=operations,
        faults=_faults(rng),
    )


def all_fit(plan: Plan) -> bool:
    """Return whether all models are served at once."""
    return int(plan.settings["budget"] - plan.settings["request_memory"]) >= ALL_FIT


def _settings(rng: random.Random) -> dict[str, Any]:
    request_memory = rng.choice((600 << 10, 1 << 20, 2 << 20))
    settings: dict[str, Any] = {
        "budget": request_memory + rng.choice(_BUDGETS),
        "budget_policy": rng.choice(("evict-lru", "refuse")),
        "queue_limit": rng.choice((1, 4, 64)),
        "request_memory": request_memory,
        "verify": "always",
        "model_control": rng.choice(("explicit", "explicit", "poll")),
    }
    if rng.random() < 0.3:
        settings["activations"] = rng.choice(("own", "shared"))
    if rng.random() < 0.3:
        settings["lanes"] = {model: rng.choice((1, 2, 3)) for model in MODELS}
        settings["lane_delay"] = {model: rng.choice((0.0005, 0.01)) for model in MODELS}
    if rng.random() < 0.2:
        settings["architecture"] = rng.choice(("seq", "sync", "async", "2s"))
    if rng.random() < 0.15:
        settings["close_after"] = {rng.choice(MODELS): rng.choice((0.05, 2.0))}
    if rng.random() < 0.2:
        settings["max_connections_per_address"] = rng.choice((1, 3))
    return settings


class _Operations:
    """Draws operations; what kinds there are, and their limits, is drawn first."""

    def __init__(self, rng: random.Random) -> None:
        self._rng = rng
        self._gap = rng.choice((0.0002, 0.001, 0.003, 0.02, 0.05))
        self._kinds = rng.sample(_CHANGES, rng.choice((0, 1, 2, 2, 3, 4)))
        self._share = rng.choice((0.02, 0.1, 0.3)) if self._kinds else 0.0
        self._ends = rng.sample(ENDS, rng.choice((0, 0, 0, 1, 1, 2)))
        self._timeouts = rng.sample((0.005, 0.02, 0.1, 0.5, 5.0), rng.randint(1, 3))
        self._pieces = rng.choice(((1 << 20,), (1 << 20, 2000), (100, 1000, 1 << 20)))
        self._pads = rng.choice(((0,), (0,), (0, 20_000), (0, 60_000)))
        self._pipelines, self._leaves = rng.random() < 0.3, rng.random() < 0.5
        self._read_delay = rng.random() < 0.15
        self._priorities = rng.choice(((0,), (0,), (1, 2, 3)))
        self._models = rng.choice((MODELS, MODELS, MODELS[:1], MODELS[1:]))

    def drawn(self, requests: int) -> tuple[Operation, ...]:
        """Return operations with so many requests at least, in the order of their starts."""
        rng, operations, start, count = self._rng, [], 0.0, 0
        ends: dict[int, Kind] = {rng.randrange(requests): end for end in self._ends}
        while count < requests:
            start += rng.expovariate(1 / self._gap)
            for index in [index for index in ends if index <= count]:
                operations.append(Operation(round(start, 6), ends.pop(index)))
                start = 0.0
            operation = self._operation(round(start, 6))
            operations.append(operation)
            count += operation.count
        return tuple(operations)

    def _operation(self, start: float) -> Operation:
        rng = self._rng
        if rng.random() < self._share:
            return self._change(start, rng.choice(self._kinds))
        is_left = self._leaves and rng.random() < 0.06
        return Operation(
            start=start,
            kind="infer",
            model=rng.choice(self._models),
            timeout=rng.choice(self._timeouts),
            piece=rng.choice(self._pieces),
            pause=rng.choice((0.0, 1e-4, 1e-3, 0.3)) if rng.random() < 0.2 else 0.0,
            count=rng.randint(2, 4) if self._pipelines and rng.random() < 0.1 else 1,
            leaves=round(rng.uniform(0, 0.02), 6) if is_left else None,
            manner=rng.choice(("close", "half", "reset")) if is_left else "close",
            address=rng.randint(1, 5),
            padding=rng.choice(self._pads),
            read_delay=rng.choice((1e-3, 0.1)) if self._read_delay and rng.random() < 0.2 else 0.0,
            priority=rng.choice(self._priorities),
        )

    def _change(self, start: float, kind: Kind) -> Operation:
        rng = self._rng
        n_bytes = 0
        if kind == "replan":
            n_bytes = rng.choice((0, 0, 600_000, 900_000, 1_500_000))
        elif kind == "upload":
            n_bytes = rng.choice((0, 0, 0, 1))
        leaves = round(rng.uniform(0, 0.05), 6) if rng.random() < 0.1 else None
        return Operation(
            start,
            kind,
            rng.choice(MODELS),
            leaves=leaves,
            address=rng.randint(1, 5),
            n_bytes=n_bytes,
        )


def _faults(rng: random.Random) -> tuple[Fault, ...]:
    """Return no faults, or a few among the first reads and other calls."""
    faults: list[Fault] = []
    if rng.random() < 0.5:
        kinds = rng.sample(_READS, rng.randint(1, 2))
        for read in sorted(rng.sample(range(600), rng.randint(1, 6))):
            seconds = rng.choice((0.01, 0.2, 2.0, MAX_LATE_SECONDS)) * rng.random()
            faults.append(Fault(read, rng.choice(kinds), round(seconds, 6)))
    if rng.random() < 0.3:
        for kind in rng.sample(_CALLS, rng.randint(1, 2)):
            calls = range(600) if kind == "slow kernel" else range(12)
            for call in sorted(rng.sample(calls, rng.randint(1, 3))):
                seconds = round(rng.choice((0.01, 0.3, 12.0)) * rng.random(), 6)
                faults.append(Fault(call, kind, seconds if kind == "slow kernel" else 0.0))
    return tuple(faults)
