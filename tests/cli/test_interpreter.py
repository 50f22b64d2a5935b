"""The server's own interpreter: taken where its bytecode is there or can be; the service is the same."""

import json
import os
import py_compile
import signal
import subprocess
import sys
import urllib.request
from contextlib import nullcontext
from importlib.util import cache_from_source
from pathlib import Path
from typing import NamedTuple

import pytest

from benchmarks.servers.client import metrics
from cli.__main__ import start
from models import interpreter
from server.memory import process_memory
from server.protocol import schemas
from server.protocol.docstrings import restore_from_source
from tests.server.support import Packs, serving_port

ROOT = Path(__file__).parents[2]
_BASE = "layerstream_process_base_anonymous_bytes"


class _ReplacedError(Exception):
    """What stands for the end of this interpreter."""


@pytest.fixture
def replaced(monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    """The commands that took this process's place."""
    commands: list[list[str]] = []

    def execve(path: str, command: list[str], environment: dict[str, str]) -> None:
        commands.append(command)
        raise _ReplacedError

    monkeypatch.setattr(os, "execve", execve)
    monkeypatch.setattr(interpreter._Process, "is_replaceable", True)
    return commands


def compiled(folder: Path, name: str) -> Path:
    """A module with bytecode of the other interpreter."""
    source = folder / f"{name}.py"
    source.write_text("x = 1\n")
    py_compile.compile(str(source), optimize=2)
    return source


def of_server(monkeypatch: pytest.MonkeyPatch, source: Path) -> None:
    """Let ``source`` be all that a server imports."""
    monkeypatch.syspath_prepend(source.parent)
    monkeypatch.setattr(interpreter, "_IMPORTED", (source.stem,))
    monkeypatch.setattr(interpreter, "_CHECKED", (source.stem,))


def test_a_module_replaces_the_command_line(
    replaced: list[list[str]], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    of_server(monkeypatch, compiled(tmp_path, "some_bytecode"))
    with pytest.raises(_ReplacedError):
        interpreter.replace("cli.serving", "5")
    assert replaced == [[sys.executable, "-OO", "-P", "-m", "cli.serving", "5"]]


def test_without_bytecode_that_can_be_written_this_interpreter_goes_on(
    replaced: list[list[str]], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    source = compiled(tmp_path, "older_bytecode")
    os.utime(source, (1, 1))
    of_server(monkeypatch, source)
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    interpreter.replace("cli.serving")
    assert not replaced


def test_bytecode_is_written_once(
    replaced: list[list[str]], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    source = tmp_path / "no_bytecode.py"
    source.write_text("x = 1\n")
    of_server(monkeypatch, source)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.delenv("PYTHONDONTWRITEBYTECODE", raising=False)
    monkeypatch.setattr(sys, "dont_write_bytecode", False)
    with pytest.raises(_ReplacedError):
        interpreter.replace("cli.serving")
    (written,) = tmp_path.rglob("*.pyc")
    assert written.name.endswith(".opt-2.pyc")


@pytest.mark.parametrize(
    ("words", "is_compiled", "is_replaced"),
    [
        (["serve", "--budget", "64MiB"], True, True),
        (["serve", "--budget", "64MiB"], False, False),  # a wrong option waits for no bytecode
        (["serve", "--help"], True, False),
        (["list", "serve"], True, False),
    ],
)
def test_serve_gives_its_process_away_before_it_imports(
    replaced: list[list[str]],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    words: list[str],
    is_compiled: bool,
    is_replaced: bool,
) -> None:
    source = compiled(tmp_path, "early_bytecode")
    of_server(monkeypatch, source)
    if not is_compiled:
        os.utime(source, (1, 1))
    monkeypatch.setattr(sys, "argv", ["layerstream", *words])
    monkeypatch.setattr("cli.process.main", lambda: None)
    with pytest.raises(_ReplacedError) if is_replaced else nullcontext():
        start()
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
    expected = [sys.executable, "-OO", "-P", "-m", "cli", *words]
    assert replaced == ([expected] if is_replaced else [])


def test_it_gives_its_process_away_without_standard_output(
    replaced: list[list[str]], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    of_server(monkeypatch, compiled(tmp_path, "silent_bytecode"))
    monkeypatch.setattr(sys, "argv", ["layerstream", "serve"])
    monkeypatch.setattr(sys, "stdout", None)
    monkeypatch.setattr(sys, "stderr", None)
    with pytest.raises(_ReplacedError):
        start()
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
    assert replaced


@pytest.mark.parametrize(("writes", "is_lean"), [(True, True), (False, False)])
def test_bytecode_that_the_first_start_writes_is_counted(
    replaced: list[list[str]],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    writes: bool,
    is_lean: bool,
) -> None:
    source = tmp_path / "none_yet.py"
    source.write_text("x = 1\n")
    of_server(monkeypatch, source)
    monkeypatch.setattr(sys, "dont_write_bytecode", not writes)
    assert interpreter.servers_are_lean() == is_lean
    assert not replaced


def test_bytecode_that_a_full_disk_has_cut_is_removed(tmp_path: Path) -> None:
    first, cut, other = (
        Path(cache_from_source(compiled(tmp_path, name), optimization="2"))
        for name in ("one", "cut", "other")
    )
    absent = tmp_path / "absent.pyc"
    assert not interpreter._remove_cut([first, cut, other, absent], first)
    assert all(path.exists() for path in (first, cut, other))
    os.truncate(cut, cut.stat().st_size - 8)
    assert interpreter._remove_cut([first, cut, other, absent], first)
    assert [path.exists() for path in (first, cut, other)] == [False, False, True]


def test_a_process_with_something_else_in_it_is_not_replaced(
    replaced: list[list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(interpreter._Process, "is_replaceable", False)
    interpreter.replace("cli.serving")
    assert not replaced


def test_docstrings_come_from_the_source(monkeypatch: pytest.MonkeyPatch) -> None:
    expected = schemas.ServerReady.__doc__
    monkeypatch.setattr(schemas.ServerReady, "__doc__", None)
    monkeypatch.setattr(schemas.Tensor, "__doc__", "Its own.")
    restore_from_source(schemas)
    assert (schemas.ServerReady.__doc__, schemas.Tensor.__doc__) == (expected, "Its own.")


class Started(NamedTuple):
    """Command line and OpenAPI document of a server, and its anonymous bytes before any model."""

    arguments: list[str]
    document: object
    base_bytes: float


def started(packs: Packs, *command: str, environment: dict[str, str]) -> Started:
    """Return what a server is that ``command`` starts."""
    flags = ("--model", "tiny", "--port", "0", "--budget", "64MiB", "--repository")
    words = [sys.executable, *command, "serve", *flags, str(packs.repository)]
    with subprocess.Popen(words, stderr=subprocess.PIPE, cwd=ROOT, env=environment) as server:
        try:
            port = serving_port(server)
            arguments = Path(f"/proc/{server.pid}/cmdline").read_text().split("\0")
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/openapi.json") as answer:
                document = json.load(answer)
            base_bytes = metrics(f"http://127.0.0.1:{port}")[_BASE]
        finally:
            server.terminate()
            server.communicate(timeout=30)
    assert server.returncode in {0, -15}
    return Started(arguments, document, base_bytes)


@pytest.mark.slow
def test_the_service_is_the_same_without_docstrings(packs: Packs, tmp_path: Path) -> None:
    environment = {**os.environ, "PYTHONPYCACHEPREFIX": str(tmp_path)}
    environment.pop("PYTHONDONTWRITEBYTECODE", None)
    # The first start compiles, and holds more for it.
    _, usual = (
        started(packs, "-c", "from cli.process import main; main()", environment=environment)
        for _ in range(2)
    )
    lean = started(packs, "-m", "cli", environment=environment)
    assert "-OO" in lean.arguments
    assert "-OO" not in usual.arguments
    assert lean.document == usual.document
    for server, n_bytes in (
        (usual, process_memory.INTERPRETER_BYTES),
        (lean, process_memory.LEAN_INTERPRETER_BYTES),
    ):
        measured = server.base_bytes - process_memory.MODEL_BYTES
        assert measured == pytest.approx(n_bytes, abs=3 << 20)
