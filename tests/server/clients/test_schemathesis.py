"""schemathesis holds a live server to its /openapi.json: all checks.

It has an environment of its own; ``LAYERSTREAM_SCHEMATHESIS_PYTHON`` names one that is there.
"""

import re
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.server.clients.environments import programs, served
from tests.server.support import REQUEST_MEMORY, Packs

pytestmark = pytest.mark.slow

_CONFIG = Path(__file__).with_name("schemathesis.toml")
_SECONDS = 40


@pytest.fixture(scope="module")
def st(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The command."""
    folder = tmp_path_factory.mktemp("schemathesis")
    variable = "LAYERSTREAM_SCHEMATHESIS_PYTHON"
    return programs(folder, "schemathesis>=4.32", variable=variable) / "st"


def test_every_answer_is_as_documented(st: Path, packs: Packs, tmp_path: Path) -> None:
    repository = tmp_path / "repository"
    for name in ("tiny", "pair"):
        shutil.copytree(packs.repository / name, repository / name)
    budget = str(REQUEST_MEMORY + (64 << 20))
    with served("--repository", str(repository), "--budget", budget) as port:
        command = [
            str(st),
            "--config-file",
            str(_CONFIG),
            "run",
            f"http://127.0.0.1:{port}/openapi.json",
        ]
        chosen = ["--checks", "all", "--seed", "1", "--max-time", str(_SECONDS), "--no-color"]
        done = subprocess.run(
            [*command, *chosen],
            capture_output=True,
            text=True,
            check=False,
            cwd=tmp_path,
            timeout=10 * _SECONDS,
        )
    assert done.returncode == 0, done.stdout[-5000:] + done.stderr[-1000:]
    found = re.search(r"(\d+) generated, \1 passed", done.stdout)
    assert found is not None, done.stdout[-2000:]
    assert int(found[1]) > 100
