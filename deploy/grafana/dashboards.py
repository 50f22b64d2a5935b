"""Grafana's dashboards: ``python deploy/grafana/dashboards.py NAME > deploy/grafana/NAME.json``.

``layerstream`` looks at servers and their models, ``fleet`` at many boxes, by the recorded series of
deploy/prometheus/fleet.yml. Panels stand in rows, in the order in which they are written here. Every query
asks for what is chosen above them.
"""

import json
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal

_COLUMNS = 24
_SOURCE = {"type": "prometheus", "uid": "${datasource}"}
_SERVERS = 'job=~"$job", instance=~"$instance"'
_MODELS = f'{_SERVERS}, model=~"$model"'
_WITH_SHARED = f'{_SERVERS}, model=~"$model|.shared."'


def of_server(name: str) -> str:
    """Return the series ``name`` of the servers that are chosen."""
    return f"layerstream_{name}{{{_SERVERS}}}"


def of_model(name: str, more: str = "") -> str:
    """Return the series ``name`` of the models that are chosen, those with the labels ``more``."""
    return f"layerstream_{name}{{{_MODELS}{more and f', {more}'}}}"


def of_box(name: str) -> str:
    """Return the recorded series ``name`` of the boxes that are chosen."""
    return f"instance:layerstream_{name}{{{_SERVERS}}}"


def of_all_boxes(name: str) -> str:
    """Return the recorded series ``name`` of the models that are chosen, all boxes together."""
    return f'model:layerstream_{name}{{job=~"$job", model=~"$model"}}'


def rate(series: str) -> str:
    """Return by how much ``series`` grow in a second."""
    return f"rate({series}[$__rate_interval])"


def by_model(series: str, how: str = "sum") -> str:
    """Return ``series`` added up for each model."""
    return f"{how} by (model) ({series})"


#: Of models that have no such series: nothing has happened.
_ELSE_NOTHING = f" or {by_model(of_model('model_ready'))} * 0"


@dataclass(frozen=True)
class _Shown:
    """How Grafana shows a kind of panel, and asks for it."""

    type: str
    options: Mapping[str, Any]
    query: Mapping[str, Any]


_NOW = {"reduceOptions": {"calcs": ["lastNotNull"], "fields": "", "values": False}}
_SHOWN = {
    "curves": _Shown(
        "timeseries",
        {
            "tooltip": {"mode": "multi", "sort": "desc"},
            "legend": {"displayMode": "list", "placement": "bottom"},
        },
        {},
    ),
    "figure": _Shown(
        "stat", {**_NOW, "colorMode": "value", "graphMode": "none"}, {"instant": True}
    ),
    "table": _Shown("table", {"showHeader": True}, {"instant": True, "format": "table"}),
}


@dataclass(frozen=True)
class Panel:
    """A panel ``width`` columns wide; ``queries``: by their legend, of a table by its columns.

    ``kind``: curves over time, one number now, or a row of numbers for each box now.

    ``lines``: which legends stand as lines before what is stacked, as Grafana matches them, that of a name
    in red; None: nothing is stacked.
    ``most``: of its axis. ``warns_from``: a figure as large is orange.
    """

    title: str
    description: str
    unit: str
    queries: Mapping[str, str]
    width: int = 12
    kind: Literal["curves", "figure", "table"] = "curves"
    lines: Mapping[str, Any] | None = None
    most: float | None = None
    warns_from: float | None = None

    @property
    def height(self) -> int:
        return 4 if self.kind == "figure" else 8

    def drawn(self, number: int, x: int, y: int) -> dict[str, Any]:
        """Return it as Grafana has it, at a place."""
        shown = _SHOWN[self.kind]
        joined = {"transformations": self._joined()} if self.kind == "table" else {}
        return {
            "id": number,
            "type": shown.type,
            "title": self.title,
            "description": self.description,
            "datasource": _SOURCE,
            "gridPos": {"x": x, "y": y, "w": self.width, "h": self.height},
            "fieldConfig": {"defaults": self._defaults(), "overrides": self._overrides()},
            "options": dict(shown.options),
            "targets": [
                {
                    "refId": chr(ord("A") + place),
                    "datasource": _SOURCE,
                    "expr": query,
                    "legendFormat": legend,
                    **shown.query,
                }
                for place, (legend, query) in enumerate(self.queries.items())
            ],
            **joined,
        }

    def _joined(self) -> list[dict[str, Any]]:
        """Return what makes one table of the queries: a row for each box."""
        columns = {f"Value #{chr(ord('A') + n)}": name for n, name in enumerate(self.queries)}
        return [
            {"id": "merge", "options": {}},
            {
                "id": "organize",
                "options": {"excludeByName": {"Time": True}, "renameByName": columns},
            },
        ]

    def _defaults(self) -> dict[str, Any]:
        defaults: dict[str, Any] = {"unit": self.unit, "min": 0}
        if self.most is not None:
            defaults["max"] = self.most
        if self.warns_from is not None:
            steps = [
                {"color": "green", "value": None},
                {"color": "orange", "value": self.warns_from},
            ]
            defaults["thresholds"] = {"mode": "absolute", "steps": steps}
            defaults["color"] = {"mode": "thresholds"}
        if self.lines is not None:
            stacked = {"mode": "normal", "group": "A"}
            defaults["custom"] = {"fillOpacity": 40, "lineWidth": 1, "stacking": stacked}
        return defaults

    def _overrides(self) -> list[dict[str, Any]]:
        if self.lines is None:
            return []
        custom = {"fillOpacity": 0, "lineWidth": 2, "stacking": {"mode": "none"}}
        properties: list[dict[str, Any]] = [
            {"id": f"custom.{name}", "value": value} for name, value in custom.items()
        ]
        if self.lines["id"] == "byName":
            properties.append({"id": "color", "value": {"mode": "fixed", "fixedColor": "red"}})
        return [{"matcher": self.lines, "properties": properties}]


_REQUESTS = of_model("requests_total")
_DELAYS = rate(of_model("request_seconds_bucket"))


def _quantile(share: float) -> str:
    return f"histogram_quantile({share}, sum by (model, le) ({_DELAYS}))"


PANELS = (
    Panel(
        "Models that serve",
        "Ready models among the selected ones.",
        "none",
        {"": f"sum({of_model('model_ready')})"},
        width=6,
        kind="figure",
    ),
    Panel(
        "Budget used",
        "Planned memory of all models and their requests as a share of the budget; `auto` fills it.",
        "percentunit",
        {"": f"sum({of_server('budget_used_bytes')}) / sum({of_server('budget_bytes')})"},
        width=6,
        kind="figure",
        most=1,
    ),
    Panel(
        "Requests",
        "Requests per second, every outcome.",
        "reqps",
        {"": f"sum({rate(_REQUESTS)})"},
        width=6,
        kind="figure",
    ),
    Panel(
        "Models refused",
        "Loads refused for want of budget since the server started.",
        "none",
        {"": f"sum({of_model('model_refusals_total')}) or vector(0)"},
        width=6,
        kind="figure",
        warns_from=1,
    ),
    Panel(
        "Memory by model and kind",
        "Stacked: what the models hold. Line: the budget they share.",
        "bytes",
        {
            "{{model}} {{kind}}": f"sum by (model, kind) (layerstream_memory_bytes{{{_WITH_SHARED}}})",
            "budget": f"sum({of_server('budget_bytes')})",
        },
        lines={"id": "byName", "options": "budget"},
    ),
    Panel(
        "Memory of the process",
        "Stacked: anonymous memory, which only the server can give back, and pages of libraries, which the "
        "kernel may drop. Lines: what the plan lets anonymous memory grow to, and the memory limit of the "
        "unit or container, where there is one.",
        "bytes",
        {
            "anonymous": f"sum({of_server('process_anonymous_bytes')})",
            "libraries": f"sum({of_server('process_file_bytes')})",
            "plan": f"sum({of_server('budget_bytes')} + {of_server('process_base_anonymous_bytes')})",
            "limit": f"sum({of_server('cgroup_limit_bytes')})",
        },
        lines={"id": "byRegexp", "options": "plan|limit"},
    ),
    Panel(
        "Request delay",
        "End to end, by model.",
        "s",
        {
            f"{{{{model}}}} p{share:.0%}".rstrip("%"): _quantile(share)
            for share in (0.5, 0.95, 0.99)
        },
    ),
    Panel(
        "Time per request by stage",
        "Mean seconds a request spends in each stage; stages that overlap both count.",
        "s",
        {
            "{{model}} {{stage}}": f"sum by (model, stage) ({rate(of_model('stage_seconds_sum'))}) / "
            f"on (model) group_left {by_model(rate(of_model('request_seconds_count')))}"
        },
    ),
    Panel(
        "Stalls",
        "Share of request time spent waiting for weights that were not read yet.",
        "percentunit",
        {
            "{{model}}": by_model(rate(of_model("stage_seconds_sum", 'stage="stall"')))
            + f" / {by_model(rate(of_model('request_seconds_sum')))}{_ELSE_NOTHING}"
        },
    ),
    Panel(
        "Read throughput",
        "Bytes per second read from model packs.",
        "Bps",
        {"{{model}}": f"{by_model(rate(of_model('read_bytes_total')))}{_ELSE_NOTHING}"},
    ),
    Panel(
        "Requests by outcome",
        "Requests per second.",
        "reqps",
        {"{{model}} {{outcome}}": f"sum by (model, outcome) ({rate(_REQUESTS)})"},
        width=8,
    ),
    Panel(
        "Queue",
        "Requests waiting for their model.",
        "none",
        {"{{model}}": by_model(of_model("queue_length"))},
        width=8,
    ),
    Panel(
        "Refusals",
        "Loads refused for want of budget, by model, since the server started.",
        "none",
        {"{{model}}": f"{by_model(of_model('model_refusals_total'))}{_ELSE_NOTHING}"},
        width=8,
    ),
    Panel(
        "Weights and memory held",
        "Size of each model's weights beside the memory it holds to serve them.",
        "bytes",
        {
            "{{model}} weights": by_model(of_model("model_weight_bytes")),
            "{{model}} held": by_model(f"layerstream_memory_bytes{{{_WITH_SHARED}}}"),
        },
        width=24,
    ),
    Panel(
        "Sweeps, predicted delay and bound",
        "How long sweeps take (of several at once each counts by its part), what the profile of a model "
        "expects a sweep to take, and what it never exceeds as long as reads and kernels keep to the "
        "profile. Models without a profile of this machine have neither.",
        "s",
        {
            "{{model}} predicted": by_model(of_model("predicted_seconds"), "max"),
            "{{model}} bound": by_model(of_model("bound_seconds"), "max"),
            "{{model}} measured": f"{by_model(rate(of_model('sweep_seconds_sum')))} / "
            f"{by_model(rate(of_model('sweep_seconds_count')))}",
        },
        width=8,
    ),
    Panel(
        "Sweeps above the bound",
        "Above: reads or kernels were slower than the profile allows, or the analysis is wrong. Violations "
        "are the latter: reads and kernels kept to the profile.",
        "short",
        {
            f"{{{{model}}}} {legend}": by_model(f"increase({of_model(name)}[$__rate_interval])")
            for legend, name in {
                "above": "bound_exceeded_total",
                "violations": "bound_violations_total",
            }.items()
        },
        width=8,
    ),
    Panel(
        "CPU of reading",
        "Processors that reading keeps busy, checksums left out, by how the server reads.",
        "short",
        {"{{reader}}": f"sum by (reader) ({rate(of_server('disk_read_cpu_seconds_total'))})"},
        width=8,
    ),
    Panel(
        "Connections",
        "Open connections, and those closed while they were silent because no place was left "
        "(max_connections).",
        "short",
        {
            f"{{{{instance}}}} {legend}": f"sum by (instance) ({series})"
            for legend, series in {
                "open": of_server("connections"),
                "dropped/s": rate(of_server("connections_dropped_total")),
                "refused/s": rate(of_server("connections_refused_total")),
            }.items()
        },
        width=8,
    ),
    Panel(
        "Memory of requests",
        "Of the budget: what requests in flight hold, and the most that they may (request_memory).",
        "bytes",
        {
            "{{instance}} held": f"sum by (instance) ({of_server('request_memory_used_bytes')})",
            "{{instance}} pool": f"sum by (instance) ({of_server('request_memory_bytes')})",
        },
        width=8,
    ),
    Panel(
        "Requests in flight",
        "Whatever they ask; those of them that wait for memory; those ended since their clients stalled.",
        "short",
        {
            f"{{{{instance}}}} {legend}": f"sum by (instance) ({series})"
            for legend, series in {
                "in flight": of_server("requests_in_flight"),
                "waiting for memory": of_server("request_memory_waiting"),
                "stalled/s": rate(of_server("stalled_requests_total")),
            }.items()
        },
        width=8,
    ),
)


FLEET_PANELS = (
    Panel(
        "Boxes",
        "Those that answer scrapes, and those that do not.",
        "none",
        {"up": f"sum(up{{{_SERVERS}}})", "down": f"sum(1 - up{{{_SERVERS}}})"},
        width=6,
        kind="figure",
    ),
    Panel(
        "Budget used",
        "Planned memory of all models on all boxes as a share of their budgets.",
        "percentunit",
        {"": f"sum({of_box('budget_used:bytes')}) / sum({of_box('budget:bytes')})"},
        width=6,
        kind="figure",
        most=1,
    ),
    Panel(
        "Answers",
        "Per second, of all boxes.",
        "reqps",
        {"": f"sum({of_box('answers:rate5m')})"},
        width=6,
        kind="figure",
    ),
    Panel(
        "Not answered",
        "Share of requests that found no place, missed their deadline or failed.",
        "percentunit",
        {
            "": f"(sum({of_box('refusals:rate5m')}) + sum({of_box('deadlines_missed:rate5m')}) + "
            f"sum({of_box('failures:rate5m')})) / sum({of_box('requests:rate5m')})"
        },
        width=6,
        kind="figure",
        most=1,
        warns_from=0.01,
    ),
    Panel(
        "Boxes now",
        "A row for each box: its budget and how much of it is planned, models that serve and that do not, "
        "requests per second by what became of them, the delay that 99 of 100 stay below.",
        "short",
        {
            column: f"max by (instance) ({of_box(name)})"
            for column, name in {
                "budget, bytes": "budget:bytes",
                "used, bytes": "budget_used:bytes",
                "models": "models_ready:count",
                "absent": "models_absent:count",
                "answers/s": "answers:rate5m",
                "refused/s": "refusals:rate5m",
                "late/s": "deadlines_missed:rate5m",
                "failed/s": "failures:rate5m",
                "p99, s": "request_seconds:p99_5m",
            }.items()
        },
        width=24,
        kind="table",
    ),
    Panel(
        "Answers by box",
        "Per second.",
        "reqps",
        {"{{instance}}": of_box("answers:rate5m")},
    ),
    Panel(
        "Delay by box",
        "Of 100 requests 99 stay below.",
        "s",
        {"{{instance}}": of_box("request_seconds:p99_5m")},
    ),
    Panel(
        "Budget used by box",
        "Share of the budget that is planned.",
        "percentunit",
        {"{{instance}}": f"{of_box('budget_used:bytes')} / {of_box('budget:bytes')}"},
        most=1,
    ),
    Panel(
        "Not answered by box",
        "Requests per second that found no place, missed their deadline or failed.",
        "reqps",
        {
            "{{instance}}": f"{of_box('refusals:rate5m')} + {of_box('deadlines_missed:rate5m')} + "
            f"{of_box('failures:rate5m')}"
        },
    ),
    Panel(
        "Boxes that serve a model",
        "How many have it ready.",
        "none",
        {"{{model}}": of_all_boxes("ready:count")},
        width=8,
    ),
    Panel(
        "Answers by model",
        "Per second, of all boxes.",
        "reqps",
        {"{{model}}": of_all_boxes("answers:rate5m")},
        width=8,
    ),
    Panel(
        "Delay by model",
        "Of 100 requests on all boxes 99 stay below.",
        "s",
        {"{{model}}": of_all_boxes("request_seconds:p99_5m")},
        width=8,
    ),
)


def _choice(label: str, title: str, series: str) -> dict[str, Any]:
    """Return the choice among the values that ``label`` has in ``series``."""
    values = f"label_values({series}, {label})"
    return {
        "name": label,
        "label": title,
        "type": "query",
        "datasource": _SOURCE,
        "query": {"query": values, "refId": label},
        "definition": values,
        "refresh": 2,
        "sort": 1,
        "multi": True,
        "includeAll": True,
        "allValue": ".*",
        "current": {"selected": True, "text": ["All"], "value": ["$__all"]},
    }


def _placed(panels: tuple[Panel, ...]) -> Iterator[dict[str, Any]]:
    """Yield them side by side, in rows as high as the first of each."""
    x = y = height = 0
    for number, panel in enumerate(panels, 1):
        if x + panel.width > _COLUMNS:
            x, y = 0, y + height
        height = panel.height
        yield panel.drawn(number, x, y)
        x += panel.width


@dataclass(frozen=True)
class Dashboard:
    """What Grafana imports; ``model``: the series that tell which models there are."""

    uid: str
    title: str
    description: str
    panels: tuple[Panel, ...]
    model: str

    def text(self) -> str:
        """Return the file that Grafana imports."""
        return json.dumps(self._document(), indent=2) + "\n"

    def _document(self) -> dict[str, Any]:
        source = {"label": "Data source", "type": "datasource", "query": "prometheus"}
        return {
            "uid": self.uid,
            "title": self.title,
            "description": self.description,
            "tags": ["layerstream"],
            "schemaVersion": 38,
            "version": 1,
            "editable": True,
            "refresh": "30s",
            "timezone": "browser",
            "graphTooltip": 1,
            "time": {"from": "now-1h", "to": "now"},
            "templating": {
                "list": [
                    {"name": "datasource", **source},
                    _choice("job", "Job", "layerstream_budget_bytes"),
                    _choice("instance", "Server", 'layerstream_budget_bytes{job=~"$job"}'),
                    _choice("model", "Model", self.model),
                ]
            },
            "annotations": {"list": []},
            "panels": list(_placed(self.panels)),
        }


DASHBOARDS = {
    "layerstream": Dashboard(
        "layerstream",
        "Layerstream",
        "One or more Layerstream servers; panels add up the servers chosen.",
        PANELS,
        of_server("model_ready"),
    ),
    "fleet": Dashboard(
        "layerstream-fleet",
        "Layerstream: fleet",
        "Many boxes with Layerstream; needs the rules of deploy/prometheus/fleet.yml.",
        FLEET_PANELS,
        'model:layerstream_ready:count{job=~"$job"}',
    ),
}


if __name__ == "__main__":
    sys.stdout.write(DASHBOARDS[sys.argv[1]].text())
