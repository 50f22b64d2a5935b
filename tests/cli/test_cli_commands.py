"""Commands are imported when they are asked for: what completion and --version take, and what they say."""

import inspect
import json
import logging
import os
import re
import subprocess
import sys
from importlib import metadata
from pathlib import Path
from shutil import copytree

import pytest

from cli.commands import COMMANDS, loaded
from models import photographs
from tests.examples import over
from tests.server.support import Cli, Packs

ARGUMENTS = 'sys.argv = ["layerstream"]'
# What bash does, and which modules it took; the program ends as soon as it has answered.
COMPLETE = f"""
import atexit, json, sys
atexit.register(lambda: print(json.dumps(sorted(sys.modules)), file=sys.stderr))
{ARGUMENTS}
from cli import main
main()
"""
SLOW = {"onnx", "onnxruntime", "fastapi", "uvicorn", "openvino"}


def completed(*words: str) -> tuple[list[str], set[str]]:
    """What a shell gets for the last of ``words``, and what was imported for it."""
    environment = {
        **os.environ,
        "_LAYERSTREAM_COMPLETE": "complete_bash",
        "COMP_WORDS": " ".join(words),
        "COMP_CWORD": str(len(words) - 1),
    }
    command = [sys.executable, "-c", COMPLETE]
    done = subprocess.run(
        command, env=environment, capture_output=True, text=True, timeout=60, check=True
    )
    return done.stdout.split(), set(json.loads(done.stderr.splitlines()[-1]))


def test_names_of_commands_are_completed_without_importing_any() -> None:
    found, imported = completed("layerstream", "")
    assert found == list(COMMANDS)
    modules = {name for name in imported if name.startswith("cli.")}
    assert not {f"cli.{command.module}" for command in COMMANDS.values()} & modules
    assert not {*SLOW, "numpy", "server.settings.settings"} & imported


def test_options_are_completed_with_their_command_alone() -> None:
    found, imported = completed("layerstream", "bench", "pipeline", "--mem")
    assert found == ["--memory-kind"]
    assert "cli.bench" in imported
    assert "cli.run" not in imported
    assert not SLOW & imported


def test_a_first_answer_waits_for_nothing_that_it_does_not_need(
    cli: Cli, packs: Packs, tmp_path: Path
) -> None:
    """What only searches, measures, draws, or shows on a terminal, is imported when it is wanted."""
    pack = str(copytree(packs.repository / "tiny", tmp_path / "tiny"))
    image = str(Path(photographs.__file__).with_name("coffee.jpg"))
    arguments = ["run", pack, "--image", image, "--threads", "1"]
    assert cli(*arguments).code == 0  # its plan is known from now on
    code = COMPLETE.replace(ARGUMENTS, f"sys.argv = {['layerstream', *arguments]}")
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True
    )
    assert "ms waiting for weights" in done.stdout
    imported = set(json.loads(done.stderr.splitlines()[-1]))
    late = {
        "pipeline.planning.thumb",
        "rich.console",
        "pipeline.benchmark",
        "numpy.random",
        "server.requests.drawing",
        "asyncio",
    }
    assert not {*late, *SLOW - {"onnxruntime"}} & imported


def test_a_server_imports_nothing_that_only_other_commands_show() -> None:
    code = "import json, sys, cli, cli.serve, server.serve; print(json.dumps([*sys.modules]))"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True
    )
    imported = set(json.loads(done.stdout))
    unused = {"rich", "onnx", "models.compiler", "pipeline.benchmark", "opentelemetry.sdk", "grpc"}
    assert not unused & imported
    own = {name for name in imported if name.startswith("cli.")}
    printing = ("printing", "printing.output")
    assert own <= {f"cli.{name}" for name in ("commands", "serve", *printing)}


def test_a_warning_of_a_package_is_one_of_the_command(
    cli: Cli, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """It may quote a file of a stranger: a profile names the machine that it was measured on."""
    monkeypatch.setattr(logging, "lastResort", logging.lastResort)
    assert cli("--version").code == 0
    package = logging.getLogger("a package")
    monkeypatch.setattr(package, "propagate", False)
    package.warning("kernel %s", "6.1\n\x1b[31m")
    assert capsys.readouterr().err == "layerstream: warning: kernel 6.1 \\x1b[31m\n"


@over("name", COMMANDS)
def test_the_list_of_commands_says_what_they_say(name: str) -> None:
    said = loaded(name).help
    assert inspect.cleandoc(said).startswith(COMMANDS[name].help)


def test_versions(cli: Cli) -> None:
    shown = cli("--version")
    assert shown.code == 0
    assert shown.out.startswith(f"layerstream {metadata.version('layerstream')} (Python 3.")
    assert f"ONNX Runtime {metadata.version('onnxruntime')}" in shown.out


def test_a_name_that_is_nearly_one_is_suggested(cli: Cli) -> None:
    result = cli("lst")
    assert re.search("'lst'.*Did you mean 'list'", result.err)
