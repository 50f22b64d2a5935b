"""What CI runs beside the default tests: which tests a change touches, and a slot that is over."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests import test_documents_run
from tests.documents import ROOT
from tests.shown import SHOWN
from tests.touched import OF_A_PAGE, changed_files, touched

DAY = 24 * 60 * 60


@pytest.mark.parametrize(
    ("changed", "tests"),
    [
        (["models/packs/pack.py", "models/zoo/classifiers.py"], ["tests/models"]),
        (["tests/cli/test_cli.py", "loader/ring.py"], ["tests/cli", "tests/loader"]),
        (["deploy/layerstream.service"], ["tests/deploy"]),
        (["README.md", "tests/conftest.py", "tools/gpu.sh"], []),
        (["docs/how-to/gpu.md", "cli/run.py"], ["tests/cli", f"{OF_A_PAGE}[docs/how-to/gpu.md]"]),
        (["benchmarks/reads.py"], ["tests/benchmarks"]),
        ([], []),
    ],
)
def test_what_a_change_touches(changed: list[str], tests: list[str]) -> None:
    assert touched(changed) == tests


def test_pages_are_touched_by_names_of_their_tests() -> None:
    """A name that pytest does not find would end the run."""
    test = test_documents_run.test_a_page_runs_as_it_is_printed
    [cases] = [mark for mark in vars(test)["pytestmark"] if mark.name == "parametrize"]
    file = Path(test_documents_run.__file__).relative_to(ROOT)
    names = [f"{file}::{test.__name__}[{cases.kwargs['ids'](each)}]" for each in cases.args[1]]
    assert touched([shown.page for shown in SHOWN]) == names


class Repository:
    """A repository whose commits add one file each, at a time that is given in days."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.git("init", "--quiet", "--initial-branch=main")

    def git(self, *arguments: str, days: float = 0) -> str:
        names = {
            f"GIT_{who}_{what}": "x"
            for who in ("AUTHOR", "COMMITTER")
            for what in ("NAME", "EMAIL")
        }
        when = f"{1_700_000_000 + int(days * DAY)} +0000"
        environment = {
            **{name: value for name, value in os.environ.items() if not name.startswith("GIT_")},
            **names,
            "GIT_AUTHOR_DATE": when,
            "GIT_COMMITTER_DATE": when,
        }
        command = ["git", "-C", str(self.folder), *arguments]
        return subprocess.run(
            command, env=environment, check=True, text=True, stdout=subprocess.PIPE
        ).stdout

    def commit(self, name: str, days: float) -> str:
        (self.folder / name).touch()
        self.git("add", name)
        self.git("commit", "--quiet", "--no-gpg-sign", "-m", name, days=days)
        return self.git("rev-parse", "HEAD").strip()


@pytest.fixture
def repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Repository:
    monkeypatch.delenv("LAYERSTREAM_BASE", raising=False)
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path))
    return Repository(tmp_path)


def test_a_change_is_the_last_day_of_a_clone_of_it(repository: Repository) -> None:
    for number, days in enumerate([0, 1, 4.1, 4.5, 5]):
        repository.commit(f"{number}", days)
    assert changed_files(repository.folder) == ["2", "3", "4"]


def test_a_change_without_anything_older_is_everything(repository: Repository) -> None:
    repository.commit("a", 0)
    repository.commit("b", 0.5)
    assert changed_files(repository.folder) == ["a", "b"]


def test_a_change_is_what_the_origin_does_not_have(
    repository: Repository, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = repository.commit("a", 0)
    second = repository.commit("b", 0.1)
    repository.git("update-ref", "refs/remotes/origin/HEAD", second)
    assert changed_files(repository.folder) == ["a", "b"]  # the origin has HEAD itself
    repository.commit("c", 0.2)
    assert changed_files(repository.folder) == ["c"]
    monkeypatch.setenv("LAYERSTREAM_BASE", first)
    assert changed_files(repository.folder) == ["b", "c"]


def test_no_repository_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path.parent))
    with pytest.raises(subprocess.CalledProcessError):
        changed_files(tmp_path)


def test_what_a_slot_has_no_time_for_is_named(tmp_path: Path) -> None:
    (tmp_path / "test_a.py").write_text("def test_one(): assert False\n")
    options = ("-p", "tests.slot", "--slot", "-1", "-c", os.devnull, "--rootdir", str(tmp_path))
    done = subprocess.run(
        [sys.executable, "-m", "pytest", *options, str(tmp_path)],
        env={**os.environ, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"},
        cwd=ROOT,
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    assert "NOT RUN: 1 tests" in done.stdout
    assert "test_a.py::test_one\n" in done.stdout
