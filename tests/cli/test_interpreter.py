"""The server's own interpreter: taken where its bytecode is there or can be; the service is the same."""

import json
import os
import py_compile
import subprocess
import sys
import urllib.request
from importlib.util import cache_from_source
from pathlib import Path

import pytest

from models import interpreter
from server.protocol import schemas
from server.protocol.docstrings import restore_from_source
from tests.server.support import Packs, serving_port

ROOT = Path(__file__).parents[2]


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


def test_a_module_replaces_the_command_line(
    replaced: list[list[str]], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    compiled(tmp_path, "some_bytecode")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(interpreter, "_IMPORTED", ("some_bytecode",))
    with pytest.raises(_ReplacedError):
        interpreter.replace("cli.serving", "5")
    assert replaced == [[sys.executable, "-OO", "-P", "-m", "cli.serving", "5"]]


def test_without_bytecode_that_can_be_written_this_interpreter_goes_on(
    replaced: list[list[str]], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    source = compiled(tmp_path, "older_bytecode")
    os.utime(source, (1, 1))
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(interpreter, "_IMPORTED", ("older_bytecode",))
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    interpreter.replace("cli.serving")
    assert not replaced


def test_bytecode_is_written_once(
    replaced: list[list[str]], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    source = tmp_path / "no_bytecode.py"
    source.write_text("x = 1\n")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.delenv("PYTHONDONTWRITEBYTECODE", raising=False)
    monkeypatch.setattr(sys, "dont_write_bytecode", False)
    monkeypatch.setattr(interpreter, "_IMPORTED", ("no_bytecode",))
    with pytest.raises(_ReplacedError):
        interpreter.replace("cli.serving")
    (written,) = tmp_path.rglob("*.pyc")
    assert written.name.endswith(".opt-2.pyc")


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


def described(packs: Packs, *command: str, environment: dict[str, str]) -> tuple[list[str], object]:
    """Return the command line of a server that ``command`` starts, and its OpenAPI document."""
    flags = ("--model", "tiny", "--port", "0", "--budget", "64MiB", "--repository")
    started = [sys.executable, *command, "serve", *flags, str(packs.repository)]
    with subprocess.Popen(started, stderr=subprocess.PIPE, cwd=ROOT, env=environment) as server:
        try:
            port = serving_port(server)
            arguments = Path(f"/proc/{server.pid}/cmdline").read_text().split("\0")
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/openapi.json") as answer:
                document = json.load(answer)
        finally:
            server.terminate()
            server.communicate(timeout=30)
    assert server.returncode in {0, -15}
    return arguments, document


@pytest.mark.slow
def test_the_service_is_the_same_without_docstrings(packs: Packs, tmp_path: Path) -> None:
    environment = {**os.environ, "PYTHONPYCACHEPREFIX": str(tmp_path)}
    environment.pop("PYTHONDONTWRITEBYTECODE", None)
    usual, expected = described(
        packs, "-c", "from cli import main; main()", environment=environment
    )
    arguments, document = described(packs, "-m", "cli", environment=environment)
    assert "-OO" in arguments
    assert "-OO" not in usual
    assert document == expected
