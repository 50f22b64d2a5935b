"""The application of deploy/ray on a real Ray: what it answers, and a replica that is killed under load.

``LAYERSTREAM_RAY_PYTHON`` names an interpreter with ``ray[serve]`` and requirements/run.txt.
"""

import json
import os
import re
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import pytest

from models.compiler import compile_onnx
from models.default import FOLDER
from tests.deploy.test_deploy import DEPLOY
from tests.server.conftest import classifier

pytestmark = pytest.mark.slow

ROOT = DEPLOY.parent


def run(home: Path, *arguments: str | Path) -> Any:
    """What a module prints last, as JSON, where Ray is; Ray's files lie in ``home``."""
    python = os.environ.get("LAYERSTREAM_RAY_PYTHON")
    if python is None:
        pytest.skip("LAYERSTREAM_RAY_PYTHON names no interpreter with ray[serve]")
    done = subprocess.run(
        [python, "-m", *map(str, arguments)],
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
        cwd=home,
        env={
            **os.environ,
            "HOME": str(home),
            "PYTHONPATH": f"{ROOT}:{DEPLOY / 'ray'}",
            "RAY_USAGE_STATS_ENABLED": "0",
        },
    )
    assert done.returncode == 0, done.stdout + done.stderr
    printed = re.search(r"^\{.*", done.stdout, re.M | re.S)
    assert printed is not None
    return json.JSONDecoder().raw_decode(printed[0])[0]  # Ray's daemon prints, too


def test_what_is_answered_and_refused(tmp_path: Path) -> None:
    for seed, name in enumerate(("a", "b")):
        onnx.save(classifier(name, seed), tmp_path / f"{name}.onnx")
        compile_onnx(tmp_path / f"{name}.onnx", tmp_path / "repository" / name)
    compile_onnx(FOLDER / "cifar10.onnx", tmp_path / "repository" / "large")
    found = run(tmp_path, "tests.deploy.ray.calls", tmp_path / "repository")
    image = np.full((1, 3, 16, 16), 0.5, np.float32)
    right = {
        name: ort.InferenceSession(tmp_path / f"{name}.onnx").run(["logits"], {"image": image})[0]
        for name in ("a", "b")
    }
    for asked, name in (("json", "a"), ("beside", "b"), ("again", "b")):
        (logits,) = json.loads(found[asked]["body"])["outputs"]
        np.testing.assert_allclose(logits["data"], right[name].ravel(), rtol=1e-4, atol=1e-6)
    assert json.loads(found["json"]["body"])["id"] == "7"
    raw = found["raw"]["body"].encode("latin-1")[int(found["raw"]["json_length"]) :]
    np.testing.assert_allclose(
        np.frombuffer(raw, np.float32), right["a"].ravel(), rtol=1e-4, atol=1e-6
    )
    assert {name: (each["status"], each["retry"]) for name, each in found.items()} == {
        **dict.fromkeys(("json", "raw", "beside", "again", "live"), (200, None)),
        **dict.fromkeys(("unknown", "get"), (404, None)),
        "malformed": (400, None),
        "late": (504, "1"),
        "refused": (503, "1"),
    }
    assert "large" in json.loads(found["refused"]["body"])["error"]


def test_a_replica_killed_under_load(tmp_path: Path) -> None:
    """Two replicas, six models that take turns: no wrong answer, no error unsaid, soon two again."""
    found = run(tmp_path, "benchmarks.ray_serve", "--seconds", "12", "--budget", "16MiB")
    for load in (found["plain"], found["ray"]["quiet"], found["ray"]["killed"]):
        assert load["wrong"] == 0
        assert load["right"] > 0
    killed = found["ray"]["killed"]
    assert killed["errors"] <= found["ray"]["lost_requests"].get("failed", 0)
    assert set(killed["statuses"]) <= {"200", "503"}
    assert found["ray"]["recovered_seconds"] is not None
    assert found["ray"]["replica_anonymous_bytes"] <= found["ray"]["replica_memory_bytes"]
