"""Objects of Kubernetes and KServe: their schema, and that what they start serves under their resources."""

import json
import os
import re
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from benchmarks.servers.served import free_port
from pipeline.peers.cgroup import memory_group
from server.memory.process_memory import process_bytes
from tests.deploy.test_deploy import DEPLOY, MIB, family, metrics_in, run, tool
from tests.deploy.watched import PHOTOGRAPH, compile_default, fetch
from tests.documents import METRIC_NAMES
from tests.examples import over
from tests.server.clients.environments import programs

FILES = sorted([*(DEPLOY / "kserve").glob("*.yaml"), *(DEPLOY / "kubernetes").glob("*.yaml")])
ADAPTER = (DEPLOY / "kubernetes/adapter.yaml").read_text()


@over("name", ["kserve/runtime", "kserve/inferenceservice", "kubernetes/layerstream"])
def test_default_resources_hold_the_default_budget(name: str) -> None:
    memory = -(-(256 * MIB + process_bytes(6)) // MIB)
    text = (DEPLOY / f"{name}.yaml").read_text()
    assert re.findall(r" memory: (\d+)Mi", text) == [str(memory)] * 2


def test_the_autoscaler_asks_for_what_servers_measure(tmp_path: Path) -> None:
    scaler = (DEPLOY / "kubernetes/autoscaler.yaml").read_text()
    asked = re.findall(r"metric:\n +name: (\S+)", scaler)
    assert asked == re.findall(r"as: (\S+)", ADAPTER)
    series = re.findall(r"seriesQuery: ([^{]+)", ADAPTER)
    queries = [
        query.replace("<<.Series>>", name)
        .replace("<<.LabelMatchers>>", 'namespace="a",pod=~"b|c"')
        .replace("<<.GroupBy>>", "pod")
        for name, query in zip(series, re.findall(r"metricsQuery: (.+)", ADAPTER), strict=True)
    ]
    assert all({family(name) for name in metrics_in(query)} <= METRIC_NAMES for query in queries)
    rules = tmp_path / "rules.json"
    rules.write_text(
        json.dumps(
            {
                "groups": [
                    {"name": "x", "rules": [{"record": "x", "expr": each} for each in queries]}
                ]
            }
        )
    )
    run(tool("promtool"), "check", "rules", rules)


@pytest.fixture(scope="module")
def kserve(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An interpreter that has kserve: it wants protobuf below 7."""
    folder = tmp_path_factory.mktemp("kserve")
    return programs(folder, "kserve>=0.21", variable="LAYERSTREAM_KSERVE_PYTHON") / "python"


def objects(python: Path, *files: Path) -> dict[str, Any]:
    """What is in ``files``, by kind; fails where the packages' classes have no such fields."""
    script = Path(__file__).with_name("kubernetes_objects.py")
    found = json.loads(run(python, script, *files))
    return {each["kind"]: each for each in found if "kind" in each}


@pytest.mark.slow
def test_objects_are_those_of_their_packages(kserve: Path, tmp_path: Path) -> None:
    assert len(objects(kserve, *FILES)) == 6
    for right, wrong, said in (
        ("containerPort", "conteinerPort", "V1ContainerPort has no conteinerPort"),
        ('cpu: "1"', "cpu: 1", "1 is no str"),
        ("name: kserve-container", "image: kserve-container", "containers[0]: "),
    ):
        text = (DEPLOY / "kserve/runtime.yaml").read_text()
        (tmp_path / "wrong.yaml").write_text(text.replace(right, wrong, 1))
        with pytest.raises(AssertionError, match=re.escape(said)):
            objects(kserve, tmp_path / "wrong.yaml")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("file", "packs", "names"),
    [
        ("kserve/runtime.yaml", "repository", ("one", "two")),
        ("kserve/runtime.yaml", "repository/one", ("cameras",)),
        ("kserve/runtime.yaml", "repository/one/1", ("cameras",)),
        ("kubernetes/layerstream.yaml", "repository", ("one", "two")),
    ],
)
def test_a_container_serves_in_what_plan_says(
    kserve: Path, tmp_path: Path, file: str, packs: str, names: tuple[str, ...]
) -> None:
    """Of a repository, a model or a pack: alive at once, ready when planned, and never killed."""
    folders = [tmp_path / "repository" / name for name in ("one", "two")]
    for folder in folders:
        compile_default(folder)
    asked = run(
        sys.executable,
        "-m",
        "cli",
        "plan",
        *folders[: len(names)],
        "--budget",
        "8MiB",
        "--resources",
        "--threads",
        "1",
    )
    (memory,) = set(re.findall(r"memory: (\S+)", asked))
    (container,) = containers(objects(kserve, DEPLOY / file))
    for limit in ("requests", "limits"):
        container["resources"][limit]["memory"] = memory
    limit_bytes = int(memory.removesuffix("Mi")) * MIB
    try:
        with (
            memory_group("kubernetes", limit_bytes) as group,
            started(container, tmp_path, tmp_path / packs, group.inside) as base,
        ):
            seen = probed(base, container)
            assert seen[0] == (200, 503)
            assert seen[-1] == (200, 200)
            assert {alive for alive, _ in seen} == {200}
            for name in 20 * names:
                assert fetch(f"{base}/v2/models/{name}:classify", PHOTOGRAPH.read_bytes())
            assert group.oom_kills == 0
    except PermissionError as exc:
        pytest.skip(f"no memory group can be made here: {exc}")


def containers(found: dict[str, Any]) -> Any:
    """What serves in the object of ``found`` that has containers."""
    if "Deployment" in found:
        return found["Deployment"]["spec"]["template"]["spec"]["containers"]
    return found["ClusterServingRuntime"]["spec"]["containers"]


@contextmanager
def started(container: Any, folder: Path, packs: Path, inside: Any) -> Iterator[str]:
    """The container as a kubelet starts it in our image, with files below ``folder``; its address."""
    port = free_port()
    resources = container["resources"]
    kubelet = {
        "limits.memory": str(int(resources["limits"]["memory"].removesuffix("Mi")) * MIB),
        "requests.cpu": resources["requests"]["cpu"],
    }
    variables = {
        each["name"]: each["value"].replace("{{.Name}}", "cameras")
        if "value" in each
        else kubelet[each["valueFrom"]["resourceFieldRef"]["resource"]]
        for each in container["env"]
    }
    programs_folder = folder / "bin"
    programs_folder.mkdir()
    (programs_folder / "layerstream").write_text(f'#!/bin/sh\nexec {sys.executable} -m cli "$@"\n')
    (programs_folder / "layerstream").chmod(0o755)
    command = [
        each.replace("/tmp/", f"{folder}/tmp/").replace("/mnt/models", str(packs))
        for each in (*(container.get("command") or ["layerstream"]), *container["args"])
    ]
    process = subprocess.Popen(
        inside(command),
        env={
            "PATH": f"{programs_folder}:{os.environ['PATH']}",
            "PYTHONPATH": str(DEPLOY.parent),
            "LAYERSTREAM_REPOSITORY": str(packs),  # of the image: /models
            **variables,
            "LAYERSTREAM_PORT": str(port),
        },
    )
    try:
        yield f"http://127.0.0.1:{port}"
    finally:
        process.terminate()
        assert process.wait(60) in {0, -15}


def probed(base: str, container: Any) -> list[tuple[int, int]]:
    """What liveness and readiness say from the first answer on until it is ready."""
    paths = [container[f"{name}Probe"]["httpGet"]["path"] for name in ("liveness", "readiness")]
    seen: list[tuple[int, int]] = []
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline and (not seen or seen[-1][1] != 200):
        try:
            seen.append((get(base + paths[0]), get(base + paths[1])))
        except OSError:
            threading.Event().wait(0.005)
    return seen


def get(url: str) -> int:
    try:
        with urllib.request.urlopen(url, timeout=10) as response:
            return int(response.status)
    except urllib.error.HTTPError as exc:
        return exc.code
