"""What clients, the disk and the system do in a run: data, so that a failure can be cut down and stored."""

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, Literal

#: "infer": a request. "load", "unload", "replan", "upload": of a model, by a client. "look": metrics.
#: "publish": a new version of a model is in the repository. "remove": its latest version is gone. "damage":
#: bytes of that are others. "stop": the service ends, and another one begins. "crash": its process ends.
Kind = Literal[
    "infer",
    "load",
    "unload",
    "replan",
    "upload",
    "look",
    "publish",
    "remove",
    "damage",
    "stop",
    "crash",
]
#: Of reads. "error": EIO. "late": it takes ``seconds`` more. "short": the file ends. "wrong": a bit is
#: flipped. "stale": what is in memory stays. "misdirected": it is of another place of the file.
ReadFault = Literal["error", "late", "short", "wrong", "stale", "misdirected"]
#: Of other calls: files that are written (the disk is full, or only read), allocations of memory, starts of
#: threads, kernels that take ``seconds`` more.
CallFault = Literal["full", "frozen", "no memory", "no thread", "slow kernel"]

MODELS = ("chain", "pair")
ENDS: tuple[Kind, ...] = ("stop", "crash")


@dataclass(frozen=True)
class Operation:
    """What a client does from ``start`` seconds on.

    ``timeout``: the deadline of a request, seconds. ``piece``: bytes that its client sends at once, and
    ``pause``: seconds between two. ``count``: requests that are sent at once, pipelined. ``leaves``: after
    so many seconds the client leaves, in the ``manner`` given; None: it waits for all answers. ``address``:
    the last number of its address. ``padding``: bytes by which its body is longer. ``read_delay``: seconds
    after which the client reads what was sent. ``n_bytes``: of a replan, 0 for no limit; of an upload 1 if
    it is no model.
    """

    start: float
    kind: Kind
    model: str = ""
    timeout: float = 5.0
    piece: int = 1 << 20
    pause: float = 0.0
    count: int = 1
    leaves: float | None = None
    manner: Literal["close", "half", "reset"] = "close"
    address: int = 1
    padding: int = 0
    read_delay: float = 0.0
    priority: int = 0
    n_bytes: int = 0


@dataclass(frozen=True)
class Fault:
    """What becomes of a call: the one of that number of its kind, counted from the first operation on."""

    call: int
    kind: ReadFault | CallFault
    seconds: float = 0.0


@dataclass(frozen=True)
class Plan:
    """A run: ``settings`` of the service, how many ``connections`` it read_delay, operations, faults."""

    seed: int
    connections: int
    settings: dict[str, Any]
    operations: tuple[Operation, ...]
    faults: tuple[Fault, ...] = ()
    #: Choices of threads other than the usual ones, of each process, by number; None: drawn from the seed.
    choices: tuple[dict[int, int], ...] | None = None

    @property
    def requests(self) -> int:
        """How many requests there are."""
        return sum(operation.count for operation in self.operations)

    @property
    def processes(self) -> tuple[tuple[Operation, ...], ...]:
        """The operations of one process after the other; the last of all but the last one ends it."""
        processes: list[tuple[Operation, ...]] = []
        rest: list[Operation] = []
        for operation in self.operations:
            rest.append(operation)
            if operation.kind in ENDS:
                processes.append(tuple(rest))
                rest = []
        return (*processes, tuple(rest))

    def with_operations(self, operations: Sequence[Operation]) -> "Plan":
        """Return it with these instead."""
        return replace(self, operations=tuple(operations))

    def with_faults(self, faults: Sequence[Fault]) -> "Plan":
        """Return it with these instead."""
        return replace(self, faults=tuple(faults))

    def with_choices(self, choices: Sequence[dict[int, int]] | None) -> "Plan":
        """Return it with these instead."""
        return replace(self, choices=None if choices is None else tuple(choices))

    def as_json(self) -> str:
        """Return it as the text of a file, without what is usual."""
        usual = asdict(Operation(0.0, "infer"))
        plan = asdict(self)
        plan["operations"] = [
            {
                key: value
                for key, value in operation.items()
                if key in ("start", "kind") or value != usual[key]
            }
            for operation in plan["operations"]
        ]
        return json.dumps(plan, indent=1) + "\n"

    @classmethod
    def from_json(cls, text: str) -> "Plan":
        """Return the plan in the text of a file."""
        plan: dict[str, Any] = json.loads(text)
        choices = plan.pop("choices")
        operations = tuple(Operation(**entry) for entry in plan.pop("operations"))
        faults = tuple(Fault(**entry) for entry in plan.pop("faults"))
        if choices is not None:
            choices = tuple(
                {int(key): value for key, value in process.items()} for process in choices
            )
        return cls(**plan, operations=operations, faults=faults, choices=choices)
