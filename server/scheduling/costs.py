"""What a sweep of each model takes, from above: as measured here, or as its plan says before that.

Pure. A refusal is a decision on a guess, so what is known must be able to heal: a machine that was busy for
a moment must not have requests refused for ever.
"""

import math
from collections import deque
from dataclasses import dataclass, field

#: So many sweeps of late are looked at.
_WINDOW = 32
#: And so many answers: each is late by itself, where the costs of sweeps that wait for each other add up.
_ANSWERS = 128
#: The next one may take a little more than the longest of these but for one: that was an accident.
_MARGIN = 1.2


def _longest(seen: "deque[float]") -> float:
    """Return what hardly any of ``seen`` exceeded."""
    ordered = sorted(seen)
    return _MARGIN * ordered[-2 if len(ordered) > _WINDOW // 4 else -1]


@dataclass
class _Known:
    """Of one model. ``predicted``: before anything was measured. ``bound``: of a sweep of one request.

    ``reckoned``: by number of requests, while nothing more is known; one decision asks a hundred times.
    """

    predicted: float = 0.0
    bound: float = 0.0
    seen: dict[int, deque[float]] = field(default_factory=dict)
    reckoned: dict[int, float] = field(default_factory=dict)

    def of(self, requests: int) -> float:
        """Return the seconds of a sweep of so many requests; 0 where nothing is known."""
        if requests not in self.reckoned:
            seconds = self._reckon(requests)
            self.reckoned[requests] = seconds if math.isfinite(seconds) else 0.0
        return self.reckoned[requests]

    def see(self, requests: int, seconds: float) -> None:
        """Note what a sweep of so many requests has taken."""
        self.seen.setdefault(requests, deque(maxlen=_WINDOW)).append(seconds)
        self.reckoned.clear()

    def doubt(self) -> None:
        """Forget the worst: the bound, then the longest of what was seen."""
        samples = [seen for seen in self.seen.values() if seen]
        if self.bound or not samples:
            self.predicted = self.bound = 0.0
        else:
            worst = max(samples, key=max)
            worst.remove(max(worst))
        self.reckoned.clear()

    def _reckon(self, requests: int) -> float:
        """Return what follows from what is known.

        Of a size that was not seen: as long as the next larger one, or as the next smaller one and a sweep
        for each of the others; the less of the two, since requests of one sweep share its reads.
        """
        known = {size: _longest(seen) for size, seen in self.seen.items() if seen}
        if self.predicted and 1 not in known:
            known[1] = self.predicted
        if 1 in known:
            known[1] = max(known[1], self.bound)
        if not known:
            return 0.0
        larger = [known[size] for size in known if size > requests]
        smaller = [size for size in known if size <= requests]
        if not smaller:
            return min(larger)
        nearest = max(smaller)
        most = max(known[size] for size in smaller)
        one_by_one = most + (requests - nearest) * known.get(1, most / nearest)
        return max(most, min([one_by_one, *larger]))


class Costs:
    """Of all models. Not thread-safe: who decides holds a lock."""

    def __init__(self) -> None:
        self._known: dict[str, _Known] = {}
        #: How long answers took from the end of their sweep to whoever asked.
        self._outside: deque[float] = deque(maxlen=_ANSWERS)

    def expect(self, model: str, predicted: float | None, bound: float | None) -> None:
        """Begin anew with what the plan of ``model`` says, seconds of a sweep of one request."""
        self._known[model] = _Known(predicted or bound or 0.0, bound or 0.0)

    def forget(self, model: str) -> None:
        """Let go of what is known of ``model``."""
        self._known.pop(model, None)

    def see(self, model: str, requests: int, seconds: float) -> None:
        """Note what a sweep has taken."""
        self._known.setdefault(model, _Known()).see(requests, seconds)

    def doubt(self, model: str) -> None:
        """Forget the worst that is known: nobody else was there, and still a request was refused.

        What is left may say otherwise, and when nothing is left the next request runs, and tells.
        """
        if self._outside:
            self._outside.remove(max(self._outside))
        self._known.setdefault(model, _Known()).doubt()

    def see_outside(self, seconds: float) -> None:
        """Note how long an answer took from the end of its sweep to whoever asked."""
        self._outside.append(seconds)

    @property
    def outside_seconds(self) -> float:
        """What an answer takes beside its sweep."""
        return _longest(self._outside) if self._outside else 0.0

    def sweep_seconds(self, model: str, requests: int) -> float:
        """Return what a sweep of so many requests takes, from above; 0: nothing is known."""
        found = self._known.get(model)
        return 0.0 if found is None else found.of(requests)
