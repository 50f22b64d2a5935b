"""Commands are imported when they are asked for: what completion and --version take, and what they say."""

import inspect
import json
import logging
import os
import re
import shlex
import subprocess
import sys
from importlib import metadata
from pathlib import Path
from shutil import copytree

import pytest

from cli.commands import COMMANDS, loaded
from cli.printing.output import (
    lose_output_where_there_is_none,
    occupy_descriptors,
    standard_output,
)
from cli.reference import commands
from models import photographs
from tests.examples import over
from tests.server.support import Cli, Packs, Result

ARGUMENTS = 'sys.argv = ["layerstream"]'
# What bash does, and which modules it took; the program ends as soon as it has answered.
COMPLETE = f"""
import atexit, json, sys
atexit.register(lambda: print(json.dumps(sorted(sys.modules)), file=sys.stderr))
{ARGUMENTS}
from cli.process import main
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
        "pipeline.planning.smallest",
        "rich.console",
        "pipeline.benchmark",
        "numpy.random",
        "models.drawing",
        "asyncio",
    }
    assert not {*late, *SLOW - {"onnxruntime"}} & imported


@pytest.mark.parametrize(
    ("module", "late"),
    [
        ("cli.up", {"numpy", "onnx", "onnxruntime", "PIL", "asyncio", "models.compiler"}),
        ("cli.compile", {"numpy", "onnx", "onnxruntime", "PIL", "asyncio", "models.compiler"}),
        pytest.param(
            "cli.compile, models.compiler",
            {"pipeline.fitting", "pipeline.planning", "rich"},
            marks=pytest.mark.slow,
        ),
    ],
)
def test_what_compiles_and_what_waits_import_nothing_else(module: str, late: set[str]) -> None:
    """Both are in memory at once, where there is little."""
    code = f"import json, sys, {module}; print(json.dumps([*sys.modules]))"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True
    )
    assert not late & set(json.loads(done.stdout))


def test_a_server_imports_nothing_that_only_other_commands_show() -> None:
    code = (
        "import json, sys, cli.serving; cli.serving.spare_imports(); import server.serve; "
        "print(json.dumps([name for name, module in sys.modules.items() if module]))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True
    )
    imported = set(json.loads(done.stdout))
    assert not [name for name in imported if name.startswith(("pydantic.v1", "_sysconfigdata"))]
    unused = {"typer", "rich", "onnx", "models.compiler", "pipeline.benchmark", "opentelemetry.sdk"}
    assert not {*unused, "grpc", "PIL"} & imported
    own = {name for name in imported if name.startswith("cli.")}
    assert own <= {f"cli.{name}" for name in ("serving", "process", "printing", "printing.output")}


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


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no /dev/full here")
@pytest.mark.parametrize("words", [["--version"], ["--help"], ["zoo", "list", "--json"]])
def test_output_that_cannot_be_written_is_said_to_be_so(
    cli: Cli, monkeypatch: pytest.MonkeyPatch, words: list[str]
) -> None:
    """Whether it is written at once, by Rich, or when the command ends."""
    with Path("/dev/full").open("w") as full:
        monkeypatch.setattr(sys, "stdout", full)
        monkeypatch.setattr(sys, "__stdout__", full)
        refused = cli(*words)
        assert sys.stdout is full
    refused.refuses(1, "standard output cannot be written: No space left on device")


@over("words", [["--version"], ["zoo", "list"], ["zoo", "list", "--json"]])
def test_output_that_is_closed_is_said_to_be_so(
    cli: Cli, monkeypatch: pytest.MonkeyPatch, words: list[str]
) -> None:
    """As of ``layerstream zoo list >&-``."""
    with monkeypatch.context() as patch:
        patch.setattr(sys, "stdout", None)
        patch.setattr(sys, "__stdout__", None)
        refused = cli(*words)
    refused.refuses(1, "standard output cannot be written: Bad file descriptor")


def test_a_service_goes_on_without_an_output(monkeypatch: pytest.MonkeyPatch) -> None:
    """As of ``layerstream up FILE >&-``, which prints what can be asked of it."""
    with monkeypatch.context() as patch:
        patch.setattr(sys, "stdout", None)
        patch.setattr(sys, "__stdout__", None)
        with standard_output():
            lose_output_where_there_is_none()
            print("# nobody reads this", flush=True)
            sys.stdout.close()


def test_a_command_without_an_error_output_ends_as_with_one(
    cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(sys, "stderr", None)
        ended = cli("inspect", "nothing/here")
        sys.stderr.close()
    assert ended.code == 2


@over("closed", [(), (0,), (2,), (1, 2), (0, 1, 2)])
def test_no_other_file_gets_a_descriptor_of_a_standard_stream(
    monkeypatch: pytest.MonkeyPatch, closed: tuple[int, ...]
) -> None:
    """Of a process that is started without some of them, as by ``layerstream serve <&- >&- 2>&-``."""
    descriptors = {0, 1, 2, 3}.difference(closed)
    inheritable: list[int] = []

    def lowest(path: str, flags: int) -> int:
        descriptor = next(index for index in range(10) if index not in descriptors)
        descriptors.add(descriptor)
        return descriptor

    with monkeypatch.context() as patch:
        patch.setattr(os, "open", lowest)
        patch.setattr(os, "close", descriptors.remove)
        patch.setattr(os, "set_inheritable", lambda descriptor, _: inheritable.append(descriptor))
        occupy_descriptors()
    assert descriptors == {0, 1, 2, 3}
    assert inheritable == list(closed)


def test_output_that_is_read_no_further_is_no_error(
    cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As of ``layerstream zoo list | head -1``."""
    read, written = os.pipe()
    os.close(read)
    with open(written, "w") as pipe:  # noqa: PTH123
        monkeypatch.setattr(sys, "stdout", pipe)
        monkeypatch.setattr(sys, "__stdout__", pipe)
        assert cli("zoo", "list") == Result(1, "", "")


@over("name", COMMANDS)
def test_the_list_of_commands_says_what_they_say(name: str) -> None:
    said = loaded(name).help
    assert inspect.cleandoc(said).startswith(COMMANDS[name].help)


@over("name", COMMANDS)
def test_examples_are_what_commands_take(name: str) -> None:
    command, words = loaded(name), shlex.split(COMMANDS[name].example)
    assert f"Example: layerstream {name} {COMMANDS[name].example}" in command.help
    if inside := getattr(command, "commands", {}):
        command = inside[words.pop(0)]
    with command.make_context(name, words):
        pass


@pytest.mark.parametrize("path", [path for path, _ in commands()])
def test_no_option_says_its_default_twice(cli: Cli, path: str) -> None:
    """In its own words, and once more as Typer adds it; and no sentence stands in it twice."""
    shown = cli(*path.split()[1:], "--help").out
    text = " ".join(re.sub("[─-╿]", " ", shown).split())
    for said in re.split(r" (?=--[a-z])", text):
        assert len(re.findall("[Dd]efault", said)) <= 1, said
        sentences = re.findall(r"[^.]{12,}?\.(?= |$)", said)
        assert len(sentences) == len(set(sentences)), said


def test_versions(cli: Cli) -> None:
    shown = cli("--version")
    assert shown.code == 0
    assert shown.out.startswith(f"layerstream {metadata.version('layerstream')} (Python 3.")
    assert f"ONNX Runtime {metadata.version('onnxruntime')}" in shown.out


def test_a_name_that_is_nearly_one_is_suggested(cli: Cli) -> None:
    result = cli("lst")
    assert re.search("'lst'.*Did you mean 'list'", result.err)
