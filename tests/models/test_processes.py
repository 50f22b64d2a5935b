"""Processes of ours import what this one imports, whatever lies in the working directory."""

import asyncio
import json
import os
import re
import signal
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from models.processes import (
    CODE,
    Child,
    StandardError,
    child_environment,
    python_command,
    start,
    start_async,
)

WHERE = python_command("tests.pipeline.where", "a b", "*")
#: What an upload might be called, or a file that lies about: our packages, the library's, hooks.
NAMES = ("models", "loader", "pipeline", "server", "cli", "json", "numpy", "runpy", "sitecustomize")


@pytest.fixture
def hostile(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working directory whose modules all leave a mark, and an environment that points at it."""
    mark = f"open({str(tmp_path / 'mark')!r}, 'a').close()\n"
    for name in (*NAMES, "usercustomize", "tests"):
        (tmp_path / name / "repository").mkdir(parents=True)
        (tmp_path / name / "pipeline").mkdir(parents=True)
        for file in ("__init__", "__main__", "repository/limited_process", "pipeline/where"):
            (tmp_path / name / f"{file}.py").write_text(mark)
    monkeypatch.chdir(tmp_path)
    for name, value in {
        "PYTHONPATH": f":.:{tmp_path}:{os.pathsep}",
        "PYTHONSTARTUP": str(tmp_path / "json" / "__init__.py"),
        "PYTHONHOME": "",
        "LD_LIBRARY_PATH": f":/usr/lib/elsewhere:lib:{os.pathsep}",
        "LD_PRELOAD": "",
        "LD_AUDIT": "",
        "PYTHONINSPECT": "1",
        "LAYERSTREAM_KEYS": "secret",
        "CUPY_CACHE_DIR": "here",
        "CUDA_VISIBLE_DEVICES": "1",
    }.items():
        monkeypatch.setenv(name, value)
    return tmp_path


def answer_of(child: Child, words: str) -> dict[str, Any]:
    output, _ = child.process.communicate(words.encode() + b"\n")
    answer: dict[str, Any] = json.loads(output)
    return answer


def test_what_lies_in_the_working_directory_is_not_imported(hostile: Path) -> None:
    answer = answer_of(start(WHERE, 12345), " ".join(NAMES))
    assert answer["arguments"] == ["a b", "*"]
    assert answer["file_bytes"] == 12345
    for name, origin in answer["origins"].items():
        assert not str(origin).startswith(str(hostile)), name
    for name in ("models", "loader", "pipeline", "server", "cli"):
        assert answer["origins"][name] == str(CODE / name / "__init__.py")
    assert all(Path(path).is_absolute() for path in answer["path"])
    assert not (hostile / "mark").exists()
    environment = answer["environment"]
    assert environment["LD_LIBRARY_PATH"] == "/usr/lib/elsewhere"
    assert environment["CUDA_VISIBLE_DEVICES"] == "1"
    refused = {"LD_PRELOAD", "LD_AUDIT", "PYTHONSTARTUP", "PYTHONINSPECT", "PYTHONHOME"}
    assert not (refused | {"LAYERSTREAM_KEYS", "CUPY_CACHE_DIR"}) & environment.keys()


async def test_the_event_loop_starts_it_equally(hostile: Path) -> None:
    process, errors = await start_async(WHERE, 99, 1 << 20)
    output, _ = await process.communicate(b"server\n")
    answer = json.loads(output)
    assert answer["origins"]["server"] == str(CODE / "server" / "__init__.py")
    assert answer["file_bytes"] == 99
    assert (process.returncode, errors.text()) == (0, "")
    assert not (hostile / "mark").exists()


def test_the_end_of_what_it_wrote_is_in_the_text() -> None:
    child = start(WHERE, 0)
    child.process.communicate(b"die\n")
    assert child.process.returncode == -signal.SIGKILL
    assert child.exit_text() == r"status -9: second \x1b[31m; third; fourth"


@given(st.lists(st.binary(max_size=9000), max_size=8))
def test_the_tail_of_standard_error_is_bounded(chunks: list[bytes]) -> None:
    errors = StandardError()
    for chunk in chunks:
        view = memoryview(chunk)
        while view:
            view = view[os.write(errors.descriptor, view) :]
    errors.close()
    text = errors.text()
    assert len(text) <= 400
    assert text.isprintable()


_PATHS = st.lists(
    st.sampled_from(["", ".", "..", "lib", "/usr/lib", "/opt/a b", "~/x"]), max_size=5
)


@given(
    st.dictionaries(
        st.sampled_from(
            (
                *("PATH", "LD_LIBRARY_PATH", "PYTHONPATH", "CUDA_PATH", "HOME", "TMPDIR"),
                *("LD_PRELOAD", "PYTHONSTARTUP", "PYTHONHOME", "BASH_ENV", "OMP_NUM_THREADS"),
                *("ORT_X", "GCONV_PATH"),
            )
        ),
        _PATHS.map(os.pathsep.join),
    )
)
def test_no_search_path_depends_on_the_working_directory(inherited: dict[str, str]) -> None:
    environment = child_environment(inherited)
    for name, value in environment.items():
        if name.endswith(("PATH", "DIR", "HOME")) and name != "PYTHONSAFEPATH":
            assert all(Path(path).is_absolute() for path in value.split(os.pathsep)), name
    assert not {"LD_PRELOAD", "PYTHONSTARTUP", "PYTHONHOME", "BASH_ENV"} & environment.keys()
    assert environment["PYTHONPATH"].split(os.pathsep)[0] == str(CODE)
    assert environment["PYTHONSAFEPATH"] == "1"


def test_a_process_that_cannot_be_started_leaves_nothing_open() -> None:
    before = len(list(Path("/proc/self/fd").iterdir()))
    with pytest.raises(FileNotFoundError):
        start(["/no/such/program"], 0)
    with pytest.raises(FileNotFoundError):
        asyncio.run(start_async(["/no/such/program"], 0, 1))
    assert len(list(Path("/proc/self/fd").iterdir())) == before


# Nothing else starts an interpreter, nor sends it objects.

#: They measure interpreters themselves: a private copy; or fork this process, and read what forks send.
_OTHERS = {
    "benchmarks/base.py",
    "benchmarks/machine/environment.py",
    "cli/model_sources.py",
    "models/forks.py",
}
_FOLDERS = ("models", "loader", "pipeline", "papers", "server", "cli", "layerstream", "benchmarks")


_FAULT = re.compile(
    r"\bsys\.executable\b|^\s*(?:import|from) (?:pickle|marshal|shelve|multiprocessing)\b",
    re.MULTILINE,
)


def _faults(file: Path) -> list[str]:
    return [f"{file}: {match}" for match in _FAULT.findall(file.read_text("utf-8"))]


def test_one_function_starts_interpreters_and_none_reads_pickles() -> None:
    allowed = {CODE / name for name in (*_OTHERS, "models/processes.py")}
    files = [file for name in _FOLDERS for file in (CODE / name).rglob("*.py")]
    assert len(files) > 300
    assert [fault for file in files if file not in allowed for fault in _faults(file)] == []


def test_a_fault_is_detected(tmp_path: Path) -> None:
    file = tmp_path / "bad.py"
    file.write_text(
        "import sys\nimport pickle\nfrom multiprocessing import Pool\nrun([sys.executable])\n"
    )
    assert len(_faults(file)) == 3
