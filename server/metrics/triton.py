"""The metrics of Triton Inference Server beside ours, so that dashboards made for it show something.

Its counters have no suffix ``_total``, which the client library adds to every counter: so this is text of
its own. Times are of answered requests, as Triton counts them. What it counts and we do not have is absent.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field

#: Why a request failed, in Triton's words, by how it ended here.
REASONS = {
    "busy": "REJECTED",
    "cancelled": "CANCELED",
    "failed": "BACKEND",
    "deadline": "OTHER",
    "invalid": "OTHER",
}
_PREFIX = "nv_inference_"
_TEXTS = {
    "request_success": "Number of successful inference requests",
    "request_failure": "Number of failed inference requests",
    "count": "Number of inferences performed",
    "exec_count": "Number of model executions performed",
    "request_duration_us": "Cumulative inference request duration in microseconds",
    "queue_duration_us": "Cumulative inference queuing duration in microseconds",
    "compute_input_duration_us": "Cumulative time in which pictures become tensors in microseconds",
    "compute_infer_duration_us": "Cumulative duration of sweeps in microseconds",
    "compute_output_duration_us": "Cumulative time in which outputs become answers in microseconds",
}
#: Every family that is exposed.
NAMES = tuple(_PREFIX + name for name in _TEXTS)
# Of one model: when new ones keep coming, the oldest are forgotten.
_MOST_VERSIONS = 8


@dataclass
class _Figures:
    """Of one version of a model: counts, seconds of answered requests, failures by reason."""

    counts: dict[str, int] = field(
        default_factory=lambda: dict.fromkeys(("request_success", "count", "exec_count"), 0)
    )
    seconds: dict[str, float] = field(
        default_factory=lambda: {
            name.removesuffix("_duration_us"): 0.0 for name in _TEXTS if name.endswith("_us")
        }
    )
    failures: dict[str, int] = field(default_factory=lambda: dict.fromkeys(REASONS.values(), 0))

    def samples(self) -> Iterator[tuple[str, str, int]]:
        """Yield name, more labels, value."""
        for name, count in self.counts.items():
            yield name, "", count
        for name, seconds in self.seconds.items():
            yield f"{name}_duration_us", "", round(seconds * 1e6)
        for reason, count in self.failures.items():
            yield "request_failure", f',reason="{reason}"', count


class TritonCounters:
    """Counts by model and version; plain numbers, since all of it happens on the event loop."""

    def __init__(self) -> None:
        self._models: dict[str, dict[str, _Figures]] = {}

    def expect(self, model: str, version: str) -> None:
        """Have the series of ``model`` there from now on."""
        self._of(model, version)

    def sweep(self, model: str, version: str, queue_seconds: float, infer_seconds: float) -> None:
        """Count one request that was computed, and how long it waited for its turn."""
        found = self._of(model, version)
        found.counts["count"] += 1
        found.counts["exec_count"] += 1
        found.seconds["queue"] += queue_seconds
        found.seconds["compute_infer"] += infer_seconds

    def spent(self, model: str, version: str, stage: str, seconds: float) -> None:
        """Add ``seconds`` to a stage: compute_input or compute_output."""
        self._of(model, version).seconds[stage] += seconds

    def ended(self, model: str, version: str, outcome: str, seconds: float) -> None:
        """Count one request by its outcome; its time if it was answered."""
        found = self._of(model, version)
        if outcome in REASONS:
            found.failures[REASONS[outcome]] += 1
            return
        found.counts["request_success"] += 1
        found.seconds["request"] += seconds

    def _of(self, model: str, version: str) -> _Figures:
        versions = self._models.setdefault(model, {})
        found = versions.get(version)
        if found is None:
            found = versions[version] = _Figures()
            if len(versions) > _MOST_VERSIONS:
                del versions[next(iter(versions))]
        return found

    def text(self) -> str:
        """Return all of it in Prometheus' text format."""
        lines: dict[str, list[str]] = {name: [] for name in _TEXTS}
        for model, versions in self._models.items():
            for version, figures in versions.items():
                labels = f'model="{_escaped(model)}",version="{_escaped(version)}"'
                for name, more, value in figures.samples():
                    lines[name].append(f"{_PREFIX}{name}{{{labels}{more}}} {value}\n")
        return "".join(
            f"# HELP {_PREFIX}{name} {_TEXTS[name]}\n# TYPE {_PREFIX}{name} counter\n{''.join(each)}"
            for name, each in lines.items()
        )


def _escaped(text: str) -> str:
    return text.replace("\\", r"\\").replace("\n", r"\n").replace('"', r"\"")
