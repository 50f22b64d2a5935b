"""What Triton counts of each version of a model, for its statistics and its metrics."""

import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Self

_NANOSECONDS = 1_000_000_000
# Of one model: when new ones keep coming, the oldest are forgotten.
_MOST_VERSIONS = 8


class Passage(NamedTuple):
    """Where the seconds of an answered request went; what the client took is nowhere among them.

    ``lanes``: how many requests its sweep carried.
    """

    queue: float
    compute_input: float
    compute_infer: float
    compute_output: float
    lanes: int = 1


@dataclass
class Duration:
    """How often, and nanoseconds in all."""

    count: int = 0
    ns: int = 0

    def add(self, seconds: float) -> None:
        self.count += 1
        self.ns += round(seconds * _NANOSECONDS)

    def __add__(self, other: Self) -> "Duration":
        return Duration(self.count + other.count, self.ns + other.ns)

    def as_dict(self) -> dict[str, int]:
        return {"count": self.count, "ns": self.ns}


@dataclass
class Computed:
    """The stages of requests that were computed."""

    compute_input: Duration = field(default_factory=Duration)
    compute_infer: Duration = field(default_factory=Duration)
    compute_output: Duration = field(default_factory=Duration)

    def add(self, passage: Passage) -> None:
        self.compute_input.add(passage.compute_input)
        self.compute_infer.add(passage.compute_infer)
        self.compute_output.add(passage.compute_output)

    def __add__(self, other: Self) -> "Computed":
        return Computed(
            self.compute_input + other.compute_input,
            self.compute_infer + other.compute_infer,
            self.compute_output + other.compute_output,
        )

    def as_dict(self) -> dict[str, dict[str, int]]:
        return {
            "compute_input": self.compute_input.as_dict(),
            "compute_infer": self.compute_infer.as_dict(),
            "compute_output": self.compute_output.as_dict(),
        }


@dataclass
class ModelStatistics:
    """Of one version of a model, since the server started.

    ``failures``: by outcome. ``batches``: by the number of requests that a sweep carried.
    """

    last_inference: int = 0
    failures: Counter[str] = field(default_factory=Counter)
    success: Duration = field(default_factory=Duration)
    fail: Duration = field(default_factory=Duration)
    queue: Duration = field(default_factory=Duration)
    batches: dict[int, Computed] = field(default_factory=dict)

    def add(self, outcome: str, seconds: float, passage: Passage | None) -> None:
        """Count a request of ``seconds``; without a passage it was not answered."""
        if passage is None:
            self.fail.add(seconds)
            self.failures[outcome] += 1
            return
        self.last_inference = time.time_ns() // 1_000_000
        self.success.add(seconds)
        self.queue.add(passage.queue)
        found = self.batches.get(passage.lanes)
        if found is None:
            found = self.batches[passage.lanes] = Computed()
        found.add(passage)

    @property
    def computed(self) -> Computed:
        """Of all answered requests."""
        return sum(self.batches.values(), Computed())

    @property
    def executions(self) -> int:
        """Sweeps; one of which some requests were answered and others not is counted by parts."""
        return round(sum(each.compute_infer.count / n for n, each in self.batches.items()))

    def as_dict(self) -> dict[str, Any]:
        """Return the fields of the extension."""
        never = Duration().as_dict()
        return {
            "last_inference": self.last_inference,
            "inference_count": self.success.count,
            "execution_count": self.executions,
            "inference_stats": {
                "success": self.success.as_dict(),
                "fail": self.fail.as_dict(),
                "queue": self.queue.as_dict(),
                **self.computed.as_dict(),
                "cache_hit": never,
                "cache_miss": never,
            },
            "batch_stats": [
                {"batch_size": size, **self.batches[size].as_dict()}
                for size in sorted(self.batches)
            ],
        }


class InferenceStatistics:
    """Of all models, by name and version; used on the event loop alone."""

    def __init__(self) -> None:
        self._models: dict[str, dict[str, ModelStatistics]] = {}

    def of(self, model: str, version: str) -> ModelStatistics:
        """Return those of a model that the repository has."""
        versions = self._models.setdefault(model, {})
        found = versions.get(version)
        if found is None:
            found = versions[version] = ModelStatistics()
            if len(versions) > _MOST_VERSIONS:
                del versions[next(iter(versions))]
        return found

    def __iter__(self) -> Iterator[tuple[str, str, ModelStatistics]]:
        for model, versions in self._models.items():
            for version, found in versions.items():
                yield model, version, found
