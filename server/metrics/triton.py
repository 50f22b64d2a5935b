"""The metrics of Triton Inference Server beside ours, so that dashboards made for it show something.

Its counters have no suffix ``_total``, which the client library adds to every counter: so this is text of
its own. Times are of answered requests, as Triton counts them. What it counts and we do not have is absent.
"""

from collections.abc import Iterator

from server.metrics.inference_statistics import InferenceStatistics, ModelStatistics

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
    "compute_input_duration_us": "Cumulative time in which bodies become tensors in microseconds",
    "compute_infer_duration_us": "Cumulative duration of sweeps in microseconds",
    "compute_output_duration_us": "Cumulative time in which outputs become answers in microseconds",
}
#: Every family that is exposed.
NAMES = tuple(_PREFIX + name for name in _TEXTS)


def text(statistics: InferenceStatistics) -> str:
    """Return ``statistics`` in Prometheus' text format."""
    lines: dict[str, list[str]] = {name: [] for name in _TEXTS}
    for model, version, figures in statistics:
        labels = f'model="{_escaped(model)}",version="{_escaped(version)}"'
        for name, more, value in _samples(figures):
            lines[name].append(f"{_PREFIX}{name}{{{labels}{more}}} {value}\n")
    return "".join(
        f"# HELP {_PREFIX}{name} {_TEXTS[name]}\n# TYPE {_PREFIX}{name} counter\n{''.join(each)}"
        for name, each in lines.items()
    )


def _samples(figures: ModelStatistics) -> Iterator[tuple[str, str, int]]:
    """Yield name, more labels, value."""
    computed = figures.computed
    yield "request_success", "", computed.count
    for reason in dict.fromkeys(REASONS.values()):
        count = sum(figures.failures[outcome] for outcome in REASONS if REASONS[outcome] == reason)
        yield "request_failure", f',reason="{reason}"', count
    yield "count", "", computed.count
    yield "exec_count", "", figures.executions
    durations = {
        "request": figures.success_ns,
        "queue": figures.queue_ns,
        "compute_input": computed.input_ns,
        "compute_infer": computed.infer_ns,
        "compute_output": computed.output_ns,
    }
    for name, ns in durations.items():
        yield f"{name}_duration_us", "", ns // 1000


def _escaped(label: str) -> str:
    return label.replace("\\", r"\\").replace("\n", r"\n").replace('"', r"\"")
