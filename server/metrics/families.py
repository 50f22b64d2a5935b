"""Metric families of our own, by the name without prefix."""

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, SummaryMetricFamily


def gauge(name: str, text: str, *labels: str, value: float | None = None) -> GaugeMetricFamily:
    """Return a gauge with ``labels``, or of one ``value``."""
    return GaugeMetricFamily(f"layerstream_{name}", text, value, labels or None)


def counter(name: str, text: str, *labels: str, value: float | None = None) -> CounterMetricFamily:
    """Return a counter with ``labels``, or of one ``value``."""
    return CounterMetricFamily(f"layerstream_{name}", text, value, labels or None)


def summary(name: str, text: str, *labels: str) -> SummaryMetricFamily:
    """Return a summary of counts and sums with ``labels``."""
    return SummaryMetricFamily(f"layerstream_{name}", text, labels=labels)
