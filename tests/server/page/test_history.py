"""The history of the page: latencies while no page was open, within bounds."""

from collections.abc import Iterable
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any, cast

import pytest

from server.operation.latency_history import (
    MAX_AGE_SECONDS,
    MAX_MODELS,
    MAX_SAMPLES,
    LatencyHistory,
)
from server.repository.entry import Entry


@dataclass
class FakeModels:
    """Models whose counters a test sets, and the clock."""

    now: float = 100.0
    counters: dict[str, tuple[int, float, float]] = field(default_factory=dict)

    def entries(self) -> Iterable[Entry]:
        absent = SimpleNamespace(name="absent", worker=None)
        return cast(Iterable[Entry], [absent, *map(self._entry, self.counters)])

    def _entry(self, name: str) -> Any:
        inferences, seconds, stalled = self.counters[name]
        statistics = SimpleNamespace(stall_seconds=stalled)
        worker = SimpleNamespace(
            served=SimpleNamespace(sweeps=inferences, sweep_seconds=seconds),
            engine=SimpleNamespace(statistics=lambda: statistics),
        )
        return SimpleNamespace(name=name, worker=worker)


def history() -> tuple[FakeModels, LatencyHistory]:
    models = FakeModels()
    return models, LatencyHistory(models.entries, lambda: models.now)


def samples(document: dict[str, Any]) -> dict[str, list[tuple[float, ...]]]:
    return {
        name: [tuple(value) for value in values] for name, values in document["samples"].items()
    }


def test_a_sample_is_the_mean_since_the_previous_one() -> None:
    models, recent = history()
    models.counters = {"m": (4, 1.0, 0.5)}
    recent.sample()
    models.now, models.counters = 101.0, {"m": (6, 2.0, 0.75)}
    recent.sample()
    models.now = 103.0
    assert recent.as_dict()["uptime_seconds"] == 3.0
    assert samples(recent.as_dict()) == {"m": [(2.0, 0.5, 0.125)]}
    models.counters = {"m": (1, 0.1, 0.0)}  # it was loaded again
    recent.sample()
    models.counters = {"m": (2, 0.3, 0.0)}
    (sample,) = samples(recent.as_dict())["m"][1:]
    assert sample == pytest.approx((0.0, 0.2, 0.0))


def test_new_inferences_are_included_and_old_samples_are_not() -> None:
    models, recent = history()
    models.counters = {"m": (0, 0.0, 0.0)}
    recent.sample()
    models.counters = {"m": (1, 0.5, 0.0)}
    assert samples(recent.as_dict()) == {"m": [(0.0, 0.5, 0.0)]}
    models.now += MAX_AGE_SECONDS + 1
    assert samples(recent.as_dict()) == {}


def test_it_is_bounded_in_models_and_in_samples() -> None:
    models, recent = history()
    names = [f"m{index}" for index in range(MAX_MODELS + 3)]
    for count in range(MAX_SAMPLES + 5):
        models.now += 0.5
        models.counters = {name: (count, float(count), 0.0) for name in names}
        recent.sample()
    result = samples(recent.as_dict())
    assert len(result) <= MAX_MODELS
    assert max(map(len, result.values())) <= MAX_SAMPLES
    models.counters = dict.fromkeys(names[:1], (1000, 2000.0, 0.0))
    assert names[0] in samples(recent.as_dict())  # who answered last stays
