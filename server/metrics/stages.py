"""Where the time of requests went, summed by stage: counted often, looked at only by a scrape."""

from collections.abc import Iterable, Iterator

from prometheus_client.core import Metric, SummaryMetricFamily
from prometheus_client.registry import Collector

STAGES = ("queue", "read", "copy", "kernel", "stall", "preprocess")


class StageCollector(Collector):
    """Counts and sums by model and stage; plain numbers, since all of it happens on the event loop."""

    def __init__(self) -> None:
        self._models: dict[str, dict[str, list[float]]] = {}

    def expect(self, model: str) -> dict[str, list[float]]:
        """Have the series of ``model`` there from now on; return its counts and sums by stage."""
        found = self._models.get(model)
        if found is None:
            found = self._models[model] = {stage: [0, 0.0] for stage in STAGES}
        return found

    def add(self, model: str, seconds: Iterable[tuple[str, float]]) -> None:
        """Add one request's ``seconds`` by stage."""
        found = self.expect(model)
        for stage, more in seconds:
            figures = found[stage]
            figures[0] += 1
            figures[1] += more

    def collect(self) -> Iterator[Metric]:
        """Yield the summary: a histogram of each stage would be twenty series of every model and stage."""
        summary = SummaryMetricFamily(
            "layerstream_stage_seconds",
            "Time of requests by stage; read sums over reads, which overlap",
            labels=["model", "stage"],
        )
        for model, stages in self._models.items():
            for stage, (count, total) in stages.items():
                summary.add_metric([model, stage], int(count), total)
        yield summary
