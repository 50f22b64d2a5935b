"""How long a batch of each model takes at most: as measured here, or before that as its plan says.

Pure. Requests are refused by these estimates, so a wrong one must be corrected: after a moment in which the
machine was busy, requests must not be refused for ever. So an idle machine that refuses doubts its
estimates until it lets a request in; where that is late, it refuses twice as many before the next doubt.
"""

import math
from collections import deque
from dataclasses import dataclass, field

#: An estimate is made of so many recent batches.
_WINDOW = 32
#: The time outside of batches is estimated from more answers: its errors do not add up along the line.
_ANSWERS = 128
#: A batch may take so many times the second-longest; the longest counts as an accident.
_MARGIN = 1.2
#: This part of its time is left to the client, which counts from before the request comes to after it has
#: read the answer, but no more than so many seconds.
_NETWORK_SHARE, _MAX_NETWORK_SECONDS = 0.05, 0.02
#: So many refusals, at most, for one request that is let in to try.
_MOST_REFUSALS = 32


def _longest(seen: "deque[float]") -> float:
    """Return an estimate from above of the next time after those ``seen``."""
    ordered = sorted(seen)
    return _MARGIN * ordered[-2 if len(ordered) > _WINDOW // 4 else -1]


@dataclass
class _Known:
    """Times of batches of one model, in seconds.

    ``predicted``: by its plan, before anything was measured. ``bound``: for a batch of one request.
    ``seen``: measured, by number of requests. ``reckoned``: estimates by number of requests, kept until the
    next measurement, since one decision may need one a hundred times. ``refused``: requests since the last
    doubt, of ``refusals`` after which there is another.
    """

    predicted: float = 0.0
    bound: float = 0.0
    seen: dict[int, deque[float]] = field(default_factory=dict)
    reckoned: dict[int, float] = field(default_factory=dict)
    refused: int = 0
    refusals: int = 1

    def of(self, requests: int) -> float:
        """Return the seconds of a batch of so many requests; 0 where nothing is known."""
        if requests not in self.reckoned:
            seconds = self._reckon(requests)
            self.reckoned[requests] = seconds if math.isfinite(seconds) else 0.0
        return self.reckoned[requests]

    def see(self, requests: int, seconds: float, late: bool) -> None:
        """Note what a batch of so many requests has taken, and whether that was too ``late``."""
        self.seen.setdefault(requests, deque(maxlen=_WINDOW)).append(seconds)
        self.reckoned.clear()
        self.refusals = min(2 * self.refusals, _MOST_REFUSALS) if late else 1

    def doubt(self) -> None:
        """Forget the worst: the bound, and once that is gone, the longest measured time."""
        self.refused += 1
        if self.refused < self.refusals:
            return
        self.refused = 0
        samples = [seen for seen in self.seen.values() if seen]
        if self.bound or not samples:
            self.predicted = self.bound = 0.0
        else:
            worst = max(samples, key=max)
            worst.remove(max(worst))
        self.reckoned.clear()

    def _reckon(self, requests: int) -> float:
        """Return an estimate from the measured sizes.

        A size that was not measured takes as long as the next larger one, or as the next smaller one and a
        batch for each further request, whichever is less: requests of one batch share its reads.
        """
        by_size = {size: _longest(seen) for size, seen in self.seen.items() if seen}
        if self.predicted and 1 not in by_size:
            by_size[1] = self.predicted
        if 1 in by_size:
            by_size[1] = max(by_size[1], self.bound)
        if not by_size:
            return 0.0
        larger = [by_size[size] for size in by_size if size > requests]
        smaller = [size for size in by_size if size <= requests]
        if not smaller:
            return min(larger)
        nearest = max(smaller)
        most = max(by_size[size] for size in smaller)
        one_by_one = most + (requests - nearest) * by_size.get(1, most / nearest)
        return max(most, min([one_by_one, *larger]))


class Costs:
    """Times of batches of all models. Not thread-safe: the dispatcher holds a lock."""

    def __init__(self) -> None:
        self._known: dict[str, _Known] = {}
        #: How long answers took from the end of their batch to the client.
        self._outside: deque[float] = deque(maxlen=_ANSWERS)

    def expect(self, model: str, predicted: float | None, bound: float | None) -> None:
        """Begin anew with what the plan of ``model`` says, seconds of a batch of one request."""
        self._known[model] = _Known(predicted or bound or 0.0, bound or 0.0)

    def forget(self, model: str) -> None:
        """Drop all that is known of ``model``."""
        self._known.pop(model, None)

    def see(self, model: str, requests: int, seconds: float, late: bool = False) -> None:
        """Note how many seconds a batch has taken; ``late``: at least, since it was ended as too late."""
        self._known.setdefault(model, _Known()).see(requests, seconds, late)

    def doubt(self, model: str) -> None:
        """Forget the worst times of ``model``: a request was refused although nothing else ran or waited.

        The remaining times may let the next one in; when none remain, it is let in and measured.
        """
        if self._outside:
            self._outside.remove(max(self._outside))
        self._known.setdefault(model, _Known()).doubt()

    def see_outside(self, seconds: float) -> None:
        """Note how long an answer took from the end of its batch to the client."""
        self._outside.append(seconds)

    @property
    def outside_seconds(self) -> float:
        """How long an answer takes outside of its batch, from above."""
        return _longest(self._outside) if self._outside else 0.0

    def deadline(self, now: float, seconds: float) -> float:
        """Return by when the batch has to end of a request whose answer is due in so many ``seconds``."""
        return (
            now
            + seconds
            - self.outside_seconds
            - min(seconds * _NETWORK_SHARE, _MAX_NETWORK_SECONDS)
        )

    def sweep_seconds(self, model: str, requests: int) -> float:
        """Return how long a batch of so many requests takes, from above; 0: nothing is known."""
        times = self._known.get(model)
        return 0.0 if times is None else times.of(requests)
