"""The files an operator installs: unit, alerts and dashboard agree with the server and tools."""

import json
import os
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import prometheus_client
import pytest

from loader.cores import LEVELS
from server.operation.watching import GRACE_SECONDS
from server.settings.settings import Settings
from tests.documents import LIMITED, METRIC_NAMES, PREDICTIONS, ROOT, read
from tests.examples import over

DEPLOY = ROOT / "deploy"
UNIT = DEPLOY / "layerstream.service"
PROMETHEUS = DEPLOY / "prometheus"
HOW_TO = ROOT / "docs" / "how-to"
MONITORING = HOW_TO / "monitoring.md"
GRAFANA = DEPLOY / "grafana"
DASHBOARDS = sorted(path.stem for path in GRAFANA.glob("*.json"))

MIB = 1 << 20
PROCESS_BASE = 116 * MIB  # what the unit takes the process base to be
MARGIN = 64 * MIB

VARIABLES = ("job", "instance", "model")
PROMQL_WORDS = {"and", "or", "unless", "by", "on", "without", "ignoring", "group_left", "bool"}


def directives(path: Path) -> dict[str, list[str]]:
    """Every directive of a unit file or drop-in with its values in order of appearance."""
    found: dict[str, list[str]] = {}
    for line in path.read_text().splitlines():
        if line and not line.startswith(("#", "[")):
            name, _, value = line.partition("=")
            found.setdefault(name, []).append(value)
    return found


def environment(unit: dict[str, list[str]]) -> dict[str, str]:
    return dict(value.split("=", 1) for value in unit["Environment"])


def dashboard_expressions(*names: str) -> list[str]:
    """The queries of the dashboards of these names, of all without any."""
    panels = [
        panel
        for name in names or DASHBOARDS
        for panel in json.loads((GRAFANA / f"{name}.json").read_text())["panels"]
    ]
    return [target["expr"] for panel in panels for target in panel["targets"]]


def expressions_with_data() -> list[str]:
    """Those of the dashboard of servers that need no profile of a model and no limit on memory."""
    absent = PREDICTIONS | LIMITED
    return [text for text in dashboard_expressions("layerstream") if not metrics_in(text) <= absent]


def filled(expression: str, interval: str) -> str:
    """A query of the dashboard as Grafana sends it while everything is chosen."""
    for name, value in {**dict.fromkeys(VARIABLES, ".*"), "__rate_interval": interval}.items():
        expression = expression.replace(f"${name}", value)
    return expression


def rule_expressions() -> dict[str, str]:
    """The expressions of all rules by name, folded blocks included; no YAML parser is a dependency."""
    text = "".join((PROMETHEUS / name).read_text() for name in ("alerts.yml", "fleet.yml"))
    found = re.findall(
        r"- (?:alert|record): (\S+)\n +expr: (?:>-\n)?(.*?)(?=\n +(?:for|labels|#|-)|\n*\Z)",
        text,
        re.M | re.S,
    )
    assert len(found) == text.count("- alert: ") + text.count("- record: ")
    return dict(found)


def metrics_in(expression: str) -> set[str]:
    """The metric names of a PromQL expression: what is left without everything else."""
    text = re.sub(r'\{[^}]*\}|\[[^]]*\]|"[^"]*"', " ", expression)
    text = re.sub(r"\b(by|on|without|ignoring)\s*\([^)]*\)", " ", text)
    return set(re.findall(r"\b[a-zA-Z_:][\w:]*\b(?!\s*\()", text)) - PROMQL_WORDS


def family(name: str) -> str:
    return re.sub(r"_(bucket|count|sum|total)$", "", name)


def tool(name: str) -> str:
    """The path of a system tool; skips without it unless LAYERSTREAM_REQUIRE_TOOLS=1."""
    path = shutil.which(name)
    if path is None:
        report = pytest.fail if os.environ.get("LAYERSTREAM_REQUIRE_TOOLS") == "1" else pytest.skip
        report(f"{name} is not installed")
    return path


def run(*command: str | Path) -> str:
    done = subprocess.run(
        [str(part) for part in command],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stdout
    return done.stdout


def test_unit_reports_readiness_and_is_watched() -> None:
    unit = directives(UNIT)
    assert unit["Type"] == ["notify"]
    assert unit["NotifyAccess"] == ["main"]
    assert unit["KillSignal"] == ["SIGTERM"]
    assert unit["Restart"] == ["on-failure"]
    assert "WatchdogSec" in unit
    assert unit["ExecReload"] == ['/bin/sh -c "kill -HUP $MAINPID"']
    assert "TimeoutStopSec" in unit
    assert unit["SyslogIdentifier"] == ["layerstream"]  # not env, which ExecStart names


def seconds(unit: dict[str, list[str]], name: str) -> float:
    """A time span of the unit: 90s or 25min."""
    (text,) = unit[name]
    number, word = re.fullmatch(r"(\d+)(s|min)", text).groups()  # type: ignore[union-attr]
    return float(number) * (60.0 if word == "min" else 1.0)


def test_a_unit_that_never_starts_is_left_failed_and_one_that_crashes_comes_back() -> None:
    unit = directives(UNIT)
    window = seconds(unit, "StartLimitIntervalSec")
    (starts,) = map(int, unit["StartLimitBurst"])
    slowest = sum(
        seconds(unit, f"{name}Sec") for name in ("TimeoutStart", "TimeoutStop", "Restart")
    )
    assert slowest * starts < window  # the slowest start there is, too often
    assert window / starts < 4 * 60  # a crash every four minutes is not
    assert seconds(unit, "TimeoutStartSec") <= GRACE_SECONDS


def test_unit_starts_the_installed_command() -> None:
    unit = directives(UNIT)
    (installed,) = unit["AssertFileIsExecutable"]
    (command,) = unit["ExecStart"]
    assert environment(unit)["PATH"].split(":")[0] == str(Path(installed).parent)
    assert command.split()[:3] == ["/usr/bin/env", Path(installed).name, "serve"]
    assert environment(unit)["ORT_DISABLE_TELEMETRY"] == "1"


def test_unit_and_configuration_fit_the_settings() -> None:
    fields = Settings.model_fields
    configuration = tomllib.loads((DEPLOY / "layerstream.toml").read_text())
    assert set(configuration) | {"budget"} <= set(fields)
    assert "budget" not in configuration  # it stands in the unit, beside MemoryMax
    (limit,) = directives(UNIT)["TimeoutStopSec"]
    assert float(limit.removesuffix("s")) > fields["drain_timeout"].default


def test_memory_limit_is_budget_base_and_margin() -> None:
    unit = directives(UNIT)
    budget = int(environment(unit)["LAYERSTREAM_BUDGET"].removesuffix("MiB")) * MIB
    (limit,) = unit["MemoryMax"]
    assert int(limit.removesuffix("M")) * MIB == budget + PROCESS_BASE + MARGIN


def test_unit_keeps_what_the_server_needs() -> None:
    unit = directives(UNIT)
    assert unit["User"] == ["layerstream"]
    assert "ProcSubset" not in unit  # onnxruntime reads /proc/cpuinfo on Arm
    assert unit["SystemCallFilter"][0] == "@system-service"
    assert unit["SystemCallFilter"][-1] == "sched_setaffinity sched_setattr"
    assert unit["LimitNICE"] == [str(-LEVELS)]  # readers
    assert set(unit["RestrictAddressFamilies"][0].split()) == {"AF_UNIX", "AF_INET", "AF_INET6"}


@pytest.mark.tools
def test_systemd_accepts_the_unit() -> None:
    assert run(tool("systemd-analyze"), "verify", UNIT, DEPLOY / "layerstream.socket") == ""


@pytest.mark.tools
def test_unit_exposure_is_low() -> None:
    # The threshold is in tenths: at most 1.5 of 10.
    run(tool("systemd-analyze"), "security", "--offline=true", "--threshold=15", UNIT)


def test_onnxruntime_runs_with_memory_deny_write_execute() -> None:
    """A model runs under the kernel's form of MemoryDenyWriteExecute (PR_SET_MDWE, Linux 6.3)."""
    script = """
import ctypes
import sys

PR_SET_MDWE, REFUSE_EXEC_GAIN = 65, 1
if ctypes.CDLL(None).prctl(PR_SET_MDWE, REFUSE_EXEC_GAIN, 0, 0, 0):
    sys.exit("unsupported")
import numpy as np
import onnxruntime
from onnx.parser import parse_model

model = parse_model(
    '<ir_version: 9, opset_import: ["" : 17]> g (float[1,3,16,16] x, float[4,3,3,3] w)'
    " => (float[1,4,14,14] y) { y = Conv(x, w) }"
)
session = onnxruntime.InferenceSession(
    model.SerializeToString(), providers=["CPUExecutionProvider"]
)
x, w = np.ones((1, 3, 16, 16), np.float32), np.ones((4, 3, 3, 3), np.float32)
assert (session.run(None, {"x": x, "w": w})[0] == 27).all()
"""
    done = subprocess.run(
        [sys.executable, "-c", script],
        env={**os.environ, **environment(directives(UNIT)), "PATH": os.environ["PATH"]},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    if done.stderr.strip() == "unsupported":
        pytest.skip("the kernel has no PR_SET_MDWE")
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    ("expression", "names"),
    [
        (
            'sum by (le) (rate(a_bucket{model=~"$model"}[5m])) / on (x) group_left b > 1e3',
            "a_bucket b",
        ),
        ('c{x="y"} unless on (job, model) d == 1 or vector(0)', "c d"),
    ],
)
def test_metrics_in(expression: str, names: str) -> None:
    assert metrics_in(expression) == set(names.split())


def test_metric_names_are_the_servers() -> None:
    known = {family(name) for name in METRIC_NAMES}
    known |= {family(item.name) for item in prometheus_client.REGISTRY.collect()}
    known.add("up")  # Prometheus makes it for every target
    rules = rule_expressions()
    known |= {name for name in rules if ":" in name}
    for expression in [*dashboard_expressions(), *rules.values()]:
        named = metrics_in(expression)
        assert named, expression
        assert {family(name) for name in named} <= known, expression


def test_the_fleet_asks_for_recorded_series() -> None:
    recorded = {name for name in rule_expressions() if ":" in name}
    asked = {name for text in dashboard_expressions("fleet") for name in metrics_in(text)}
    assert asked == recorded | {"up"}


@pytest.mark.parametrize("name", DASHBOARDS)
def test_dashboard_is_what_the_code_says(name: str) -> None:
    """deploy/grafana/NAME.json: ``python deploy/grafana/dashboards.py NAME`` prints it."""
    printed = run(sys.executable, str(GRAFANA / "dashboards.py"), name)
    assert printed == (GRAFANA / f"{name}.json").read_text()


@pytest.mark.parametrize("name", DASHBOARDS)
def test_dashboard_is_portable(name: str) -> None:
    dashboard = json.loads((GRAFANA / f"{name}.json").read_text())
    variables = {item["name"]: item for item in dashboard["templating"]["list"]}
    assert variables["datasource"]["type"] == "datasource"
    for variable, above in {"job": [], "instance": ["$job"], "model": ["$job"]}.items():
        assert variables[variable]["allValue"] == ".*"
        assert all(each in variables[variable]["definition"] for each in above)
    panels: list[dict[str, Any]] = dashboard["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels)
    for panel in panels:
        for source in (panel, *panel["targets"]):
            assert source["datasource"] == {"type": "prometheus", "uid": "${datasource}"}
        assert panel["title"]
        assert panel["description"]
        assert panel["gridPos"]["x"] + panel["gridPos"]["w"] <= 24


@over("expression", dashboard_expressions())
def test_every_query_asks_the_servers_chosen(expression: str) -> None:
    """Each metric in it, with its labels: two servers of one data source are told apart."""
    selectors = re.findall(r"([\w:]+)(?=\{)(\{[^}]*\})", expression)
    assert {name for name, _ in selectors} == metrics_in(expression)
    for name, selector in selectors:
        boxes = "" if name.startswith("model:") else 'instance=~"$instance"'
        assert selector.startswith(f'{{job=~"$job", {boxes}')


def test_every_alert_says_what_to_do() -> None:
    """In its annotations, in the table, at length in docs/how-to/runbooks.md; and it was made to fire."""
    alerts = (PROMETHEUS / "alerts.yml").read_text()
    rules = dict(re.findall(r"- alert: (\w+)\n(.*?)(?=\n *- alert: |\Z)", alerts, re.S))
    for name, rule in rules.items():
        assert "summary: " in rule, name
        assert "description: " in rule, name
        assert f"runbook_url: docs/how-to/runbooks.md#{name.lower()}\n" in rule, name
    tested = re.findall(r'alertname="(\w+)"', (PROMETHEUS / "alerts_test.yml").read_text())
    assert set(tested) == set(rules)
    table = re.findall(r"^\| `(Layerstream\w+)` \|", MONITORING.read_text(), re.M)
    assert table == list(rules)
    pages = read((HOW_TO / "runbooks.md").read_text())
    assert {name.lower() for name in rules} <= pages.anchors


@pytest.mark.tools
def test_promtool_accepts_configuration_and_rules() -> None:
    run(tool("promtool"), "check", "config", PROMETHEUS / "prometheus.yml")
    for name in ("alerts", "fleet"):
        run(tool("promtool"), "check", "rules", PROMETHEUS / f"{name}.yml")
        run(tool("promtool"), "test", "rules", PROMETHEUS / f"{name}_test.yml")


@pytest.mark.tools
def test_dashboard_shows_data_before_anything_is_refused(tmp_path: Path) -> None:
    """Every query has a result on a server that served one resident model without a fault.

    Such a server has no series for refusals, reads and stalls.
    """
    model, target = 'model="m"', 'job="layerstream",instance="a"'
    series = [
        f"layerstream_{name}{{{target}{labels}}}"
        for name, labels in {
            "budget_bytes": "",
            "budget_used_bytes": "",
            "process_base_bytes": "",
            "memory_bytes": f',{model},kind="resident"',
            "model_ready": f",{model}",
            "model_weight_bytes": f",{model}",
            "queue_length": f",{model}",
            "request_seconds_bucket": f',{model},le="+Inf"',
            "request_seconds_count": f",{model}",
            "request_seconds_sum": f",{model}",
            "stage_seconds_sum": f',{model},stage="kernel"',
            "requests_total": f',{model},outcome="ok"',
            "bound_exceeded_total": f",{model}",
            "bound_violations_total": f",{model}",
            "disk_read_cpu_seconds_total": ',reader="preadv"',
            "process_anonymous_bytes": "",
            "process_file_bytes": "",
            "process_base_anonymous_bytes": "",
            "sweep_seconds_sum": f",{model}",
            "sweep_seconds_count": f",{model}",
            "connections": "",
            "connections_dropped_total": "",
            "connections_refused_total": "",
            "request_memory_bytes": "",
            "request_memory_used_bytes": "",
            "request_memory_waiting": "",
            "requests_in_flight": "",
            "stalled_requests_total": "",
        }.items()
    ]
    series.append(f"process_resident_memory_bytes{{{target}}}")
    test = {
        "interval": "15s",
        "input_series": [{"series": item, "values": "0+60x40"} for item in series],
        "promql_expr_test": [
            {
                "expr": f"count({filled(expression, '1m')}) >= bool 1",
                "eval_time": "8m",
                "exp_samples": [{"labels": "{}", "value": 1}],
            }
            for expression in expressions_with_data()
        ],
    }
    rules = tmp_path / "dashboard_test.yml"
    rules.write_text(json.dumps({"evaluation_interval": "15s", "tests": [test]}))
    run(tool("promtool"), "test", "rules", rules)
