"""``layerstream up``: what it takes, what it compiles again, and that the lines which it prints work."""

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator, Sequence
from inspect import signature
from pathlib import Path
from shutil import copy, copytree

import pytest
from onnx import load, save_model

from cli.arguments import repeated
from cli.check import check as check_command
from cli.model_sources import (
    RECIPES,
    FailedCommandError,
    check_sources,
    pack_of,
    recipes_beside,
    sources_of,
)
from cli.process import NO_MEMORY
from cli.source_records import Source, all_files
from cli.up import up as up_command
from models.packs.folders import versions
from models.packs.pack import read_pack
from models.packs.target import host_target
from pipeline.checking import Depth
from pipeline.execution.errors import InputError
from server.memory.process_memory import MemoryLimit, process_bytes
from server.settings.settings import Settings
from tests.models.exporters import FILES, model_of
from tests.models.texts import write_files
from tests.server.support import BAD, FAILED, LIMIT_SECONDS, Cli, Packs

ISA = host_target().isa
#: What ``compile --json`` prints, as far as ``up`` reads it.
COMPILED = (
    b'{"source_files": ["pair.onnx"], "smallest_budget_bytes": 2097152, "pictures_budget_bytes": 2097152,'
    b' "smallest_memory_bytes": null, "costs": []}'
)


@pytest.fixture
def onnx(packs: Packs, tmp_path: Path) -> Path:
    return Path(copy(packs.sources["pair"], tmp_path / "pair.onnx"))


@pytest.fixture
def in_process(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    """Compile in this process: starting another takes most of the time of a test."""

    def run(*words: object) -> bytes:
        done = cli(*words)
        print(done.err, end="", file=sys.stderr)
        if done.code == NO_MEMORY:
            raise MemoryError("more memory than there is")
        if done.code:
            raise FailedCommandError(done.err.strip().removeprefix("layerstream: "), done.code)
        return done.out.encode()

    monkeypatch.setattr("cli.model_sources._run", run)


@contextlib.contextmanager
def running(*arguments: object) -> Iterator["subprocess.Popen[str]"]:
    command = [sys.executable, "-m", "cli", "up", *map(str, arguments)]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    ) as process:
        try:
            yield process
        finally:
            process.send_signal(signal.SIGTERM)
            process.wait(LIMIT_SECONDS)


def asked(process: "subprocess.Popen[str]", models: int) -> list[str]:
    """Run the lines that it prints, a model each, and return what is answered."""
    assert process.stdout is not None
    lines = [process.stdout.readline() for _ in range(models)]
    return [
        subprocess.run(["bash", "-c", line], capture_output=True, text=True, check=True).stdout
        for line in lines
    ]


def test_lines_to_copy_work_in_the_memory_that_suffices(
    cli: Cli, packs: Packs, onnx: Path, tmp_path: Path
) -> None:
    given = (onnx, packs.repository / "tiny", "--repository", tmp_path / "packs", "--port", 0)
    shown = cli("up", *given, "--memory", process_bytes(2) + (64 << 10))
    assert shown.code == BAD
    line = shown.err.splitlines()[-1]
    enough = line.split("--memory ")[1].split()[0]
    assert line.endswith(f"--memory {enough} suffices for all")
    with running(*given, "--memory", enough, "--threads", 1) as process:
        answers = sorted(asked(process, 2))
    assert process.returncode == 0
    assert '"predictions"' in answers[1]
    assert '"scores"' in answers[0]
    assert '"hidden"' in answers[0]


@pytest.mark.slow
def test_a_file_of_ultralytics_answers_with_names(tmp_path: Path) -> None:
    save_model(model_of(FILES["yolov8n"]), tmp_path / "yolov8n.onnx")
    with running(tmp_path / "yolov8n.onnx", "--port", 0) as process:  # no memory: half of the free
        (answer,) = asked(process, 1)
    labels = {item["label"] for item in json.loads(answer)["detections"]}
    assert labels == {"person", "bicycle", "car"}


def pairs(folder: Path) -> list[Path]:
    return sorted(path for path in folder.rglob("*") if path.is_file())


def manifest(folder: Path) -> os.stat_result:
    return (folder / "1" / "manifest.json").stat()


@pytest.mark.usefixtures("in_process")
def test_what_has_not_changed_is_not_compiled_again(onnx: Path, packs: Packs) -> None:
    repository = onnx.parent / "packs"
    folder = pack_of(Source("pair", (onnx,)), repository, ISA)
    first = manifest(folder)
    pack_of(Source("pair", (onnx,)), repository, ISA)
    assert manifest(folder) == first
    os.utime(onnx)  # the same content
    pack_of(Source("pair", (onnx,)), repository, ISA)
    assert manifest(folder) == first
    onnx.write_bytes(packs.sources["tiny"].read_bytes())
    pack_of(Source("pair", (onnx,)), repository, ISA)
    assert manifest(folder) != first


@pytest.mark.parametrize("check", ["quick", "full"])
def test_how_a_pack_is_checked_is_passed_on(
    onnx: Path, check: Depth, monkeypatch: pytest.MonkeyPatch
) -> None:
    commands: list[tuple[object, ...]] = []

    def recorded(*words: object) -> bytes:
        commands.append(words)
        return COMPILED

    monkeypatch.setattr("cli.model_sources._run", recorded)
    pack_of(Source("pair", (onnx,)), onnx.parent / "packs", ISA, check)
    assert " ".join(map(str, commands[0])).count(f" --check {check} ") == 1


@pytest.mark.usefixtures("in_process")
@pytest.mark.parametrize("megabytes", [100, 128])
def test_a_group_that_is_small_for_compiling_is_said_before(
    onnx: Path, monkeypatch: pytest.MonkeyPatch, megabytes: int
) -> None:
    told: list[str] = []
    monkeypatch.setattr("cli.model_sources.tell", told.append)
    limit = MemoryLimit(megabytes * 10**6, 0)
    monkeypatch.setattr("cli.model_sources.memory_limit", lambda: limit)
    pack_of(Source("pair", (onnx,)), onnx.parent / "packs", ISA)
    assert ("a pack that was compiled elsewhere" in told[0]) == (megabytes == 100)


@pytest.mark.usefixtures("in_process")
def test_what_lacked_memory_is_tried_again_where_there_is_more(
    onnx: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def tried(free_bytes: int, limit_bytes: int) -> Path:
        monkeypatch.setattr("server.memory.process_memory.spare_bytes", lambda: free_bytes)
        limit = MemoryLimit(limit_bytes, 0)
        monkeypatch.setattr("cli.model_sources.memory_limit", lambda: limit)
        return pack_of(Source("pair", (onnx,)), onnx.parent / "packs", ISA)

    with pytest.raises(MemoryError, match="more memory than there is"):
        tried(1 << 20, 128 << 20)
    with pytest.raises(
        MemoryError, match=r"128\.0 MiB it could not be compiled, so it is not tried"
    ):
        tried(1 << 30, 128 << 20)
    assert versions(tried(1 << 30, 256 << 20))


@pytest.mark.usefixtures("in_process")
def test_what_lacks_memory_leaves_the_others_to_be_served(
    cli: Cli, onnx: Path, packs: Packs, monkeypatch: pytest.MonkeyPatch
) -> None:
    served: list[tuple[str, ...]] = []
    monkeypatch.setattr(
        "cli.up.start_server", lambda launch: served.append(launch.settings().models)
    )
    monkeypatch.setattr("server.memory.process_memory.spare_bytes", lambda: 1 << 20)
    monkeypatch.setattr("cli.model_sources.memory_limit", lambda: None)
    given = ("up", onnx, "--memory", "512MB", "--port", 0)
    alone = cli(*given)
    assert (alone.code, served) == (FAILED, [])
    assert "MiB are free; nothing was written" in alone.err
    assert alone.out.startswith("# pair is not served: ")
    assert not (onnx.parent / ".layerstream").exists()
    several = cli(*given, packs.repository / "tiny")
    assert (several.code, served) == (0, [("tiny",)])


@pytest.mark.usefixtures("in_process")
def test_weights_beside_the_file_are_part_of_it(onnx: Path, packs: Packs) -> None:
    model = load(packs.sources["tiny"])
    save_model(model, onnx, save_as_external_data=True, location="pair.data", size_threshold=64)
    repository, weights = onnx.parent / "packs", onnx.with_name("pair.data")
    folder = pack_of(Source("pair", (onnx,)), repository, ISA)
    first = manifest(folder)
    pack_of(Source("pair", (onnx,)), repository, ISA)
    assert manifest(folder) == first
    weights.write_bytes(bytes(weights.stat().st_size))
    pack_of(Source("pair", (onnx,)), repository, ISA)
    assert manifest(folder) != first
    weights.unlink()
    with pytest.raises(InputError, match=r"pair\.data: No such file"):
        pack_of(Source("pair", (onnx,)), repository, ISA)


@pytest.mark.usefixtures("in_process")
def test_a_pack_is_made_for_the_device_that_computes(onnx: Path) -> None:
    for isa in (ISA, "cuda-sm72"):
        folder = pack_of(Source("pair", (onnx,)), onnx.parent / "packs", isa)
        assert read_pack(folder / "1").manifest.target.isa == isa


@pytest.mark.usefixtures("in_process")
def test_other_recipes_are_another_pack(onnx: Path, packs: Packs, tmp_path: Path) -> None:
    copy(packs.sources["tiny"], onnx)
    labels = tmp_path / "labels.txt"
    labels.write_text("".join(f"{number}\n" for number in range(10)))
    folder = pack_of(Source("pair", (onnx,)), tmp_path / "packs", ISA)
    first = manifest(folder)
    pack_of(Source("pair", (onnx,), {"labels": labels}), tmp_path / "packs", ISA)
    assert manifest(folder) != first


def test_options_that_errors_of_compile_name_are_accepted(
    onnx: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What no request can carry is left out here as by `compile`."""
    commands: list[Sequence[object]] = []

    def run(*words: object) -> bytes:
        commands.append(words)
        return COMPILED

    monkeypatch.setattr("cli.model_sources._run", run)
    words = repeated(shape=None, without_output=["hidden", "best"])
    assert words == ("--without-output", "hidden", "--without-output", "best")
    (source,) = sources_of([onnx], {}, words)
    pack_of(source, tmp_path / "packs", ISA)
    assert commands[0][:2] == ("compile", onnx)
    assert commands[0][-4:] == words
    for command in (up_command, check_command):
        assert {"shape", "keep_input", "without_output"} <= signature(command).parameters.keys()


def test_a_pack_stays_where_it_is(packs: Packs, tmp_path: Path) -> None:
    (source,) = sources_of([packs.repository / "tiny"], {})
    folder = pack_of(source, tmp_path / "packs", ISA)
    assert folder.resolve() == packs.repository / "tiny"
    pack_of(source, tmp_path / "packs", ISA)
    assert sources_of([packs.repository / "tiny" / "1"], {}) == [source]


def test_what_is_there_already_stays(onnx: Path, packs: Packs, tmp_path: Path) -> None:
    copytree(packs.repository / "tiny", tmp_path / "packs" / "pair")
    before = pairs(tmp_path / "packs")
    for source in (Source("pair", (onnx,)), Source("pair", (packs.repository / "pair",))):
        with pytest.raises(InputError, match="something else is there"):
            pack_of(source, tmp_path / "packs", ISA)
    assert pairs(tmp_path / "packs") == before


@pytest.mark.usefixtures("in_process")
def test_what_was_interrupted_is_made_again(
    onnx: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before the pack was there, and before it was known to be ours."""

    def killed(*_: object) -> None:
        raise ChildProcessError(9)

    monkeypatch.setattr("cli.model_sources.memory_limit", lambda: None)
    source = Source("pair", (onnx,))
    with monkeypatch.context() as patched:
        patched.setattr("cli.model_sources._run", killed)
        with pytest.raises(MemoryError, match=r"activations .* with --no-check"):
            pack_of(source, tmp_path / "packs", ISA)
    folder = pack_of(source, tmp_path / "packs", ISA)
    first = manifest(folder)
    (folder / "made.json").write_text("{}")
    pack_of(source, tmp_path / "packs", ISA)
    assert manifest(folder) != first


@pytest.mark.usefixtures("in_process")
def test_a_file_that_is_no_model_leaves_what_was_there(
    onnx: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    bad = onnx.with_name("bad.onnx")
    bad.write_text("no model")
    with pytest.raises(FailedCommandError):
        pack_of(Source("bad", (bad,)), tmp_path / "packs", ISA)
    assert not (tmp_path / "packs").exists()
    folder = pack_of(Source("pair", (onnx,)), tmp_path / "packs", ISA)
    first = manifest(folder)
    onnx.write_text("no model")
    capsys.readouterr()
    with pytest.raises(FailedCommandError):
        pack_of(Source("pair", (onnx,)), tmp_path / "packs", ISA)
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(f"layerstream: {onnx}")
    assert manifest(folder) == first


def test_a_folder_that_takes_nothing_is_named(onnx: Path, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(InputError, match=r"file/packs: .*--repository"):
        pack_of(Source("pair", (onnx,)), tmp_path / "file" / "packs", ISA)


@pytest.mark.parametrize(
    ("names", "said"),
    [
        (["a.onnx", "sub/a.onnx"], "two models are called 'a'"),
        (["a.onnx", "a.cfg", "a.weights"], "two models are called 'a'"),
        (["a.txt"], "a.txt: no kind of model"),
        (["missing.onnx"], "no such file"),
        (["b.weights"], "b.weights: give the cfg file"),
        (["b.cfg"], "its weights are missing"),
        (["not a name.onnx"], "cannot be called"),
    ],
)
def test_what_is_no_model_is_one_line(names: Sequence[str], said: str, tmp_path: Path) -> None:
    (tmp_path / "sub").mkdir()
    for name in {*names} - {"missing.onnx"}:
        (tmp_path / name).touch()
    with pytest.raises(InputError, match=said):
        sources_of([tmp_path / name for name in names], {})


def test_weights_go_to_their_cfg(tmp_path: Path) -> None:
    names = ("a.cfg", "b.cfg", "b.weights", "other.weights", "c.cfg", "c.weights")
    files = {name: tmp_path / name for name in names}
    for file in files.values():
        file.touch()
    given = [files[name] for name in ("a.cfg", "other.weights", "b.cfg", "b.weights", "c.cfg")]
    assert [source.files for source in sources_of(given, {})] == [
        (files["a.cfg"], files["other.weights"]),
        (files["b.cfg"], files["b.weights"]),
        (files["c.cfg"], files["c.weights"]),
    ]


def test_options_are_of_one_file_and_recipes_lie_beside_each(
    packs: Packs, onnx: Path, tmp_path: Path
) -> None:
    labels = {"labels": tmp_path / "labels.txt"}
    for paths in ([onnx, packs.repository / "tiny"], [packs.repository / "tiny"]):
        with pytest.raises(InputError, match="--labels is for one ONNX file alone"):
            sources_of(paths, labels)
        with pytest.raises(InputError, match="--shape is for one ONNX file alone"):
            sources_of(paths, {}, ["--shape", "input=1,3"])
    own = {name: onnx.with_name(f"pair{end}") for name, end in RECIPES.items()}
    for file in own.values():
        file.touch()
    first, second = sources_of([onnx, packs.repository / "tiny"], {})
    assert (first.recipes, second.recipes) == (own, {})
    (alone,) = sources_of([onnx], labels, ["--shape", "input=1,3"])
    assert (alone.recipes, alone.words) == ({**own, **labels}, ("--shape", "input=1,3"))


def test_configuration_files_belong_to_the_graphs_in_their_folder_or_below(tmp_path: Path) -> None:
    (tmp_path / "onnx").mkdir()
    next_to, below = tmp_path / "m.onnx", tmp_path / "onnx" / "m.onnx"
    names = ["config.json", "processor_config.json", "preprocess_cfg.json"]
    for file in (next_to, below, *(tmp_path / name for name in names)):
        file.touch()
    configs = {
        "config": tmp_path / "config.json",
        "image_config": tmp_path / "processor_config.json",
    }
    assert recipes_beside(next_to) == recipes_beside(below) == configs
    (nearest := tmp_path / "onnx" / "config.json").touch()
    assert recipes_beside(below) == {**configs, "config": nearest}


def test_the_files_of_texts_make_another_pack(tmp_path: Path) -> None:
    """All files next to a tokenizer are among those that `up` looks at."""
    tokenizer = write_files(tmp_path, config={})
    model = tmp_path / "onnx" / "model.onnx"
    model.parent.mkdir()
    model.touch()
    (source,) = sources_of([model], {})
    assert source.recipes["tokenizer"] == tokenizer
    names = {path.relative_to(tmp_path).as_posix() for path in all_files(source, ())}
    assert names == {
        "1_Pooling/config.json",
        "config.json",
        "modules.json",
        "onnx/model.onnx",
        "tokenizer.json",
        "tokenizer_config.json",
    }


def test_a_port_that_is_taken_is_told_before_anything_is_compiled(cli: Cli, onnx: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        refused = cli("up", onnx, "--memory", "400MiB", "--port", taken.getsockname()[1])
    assert "another port: --port" in refused.err
    assert not (onnx.parent / ".layerstream").exists()


def test_what_a_start_needs_is_checked_before_anything_is_compiled(
    cli: Cli, onnx: Path, tmp_path: Path
) -> None:
    (tmp_path / "keys").write_text("no keys\n")
    copytree(onnx.parent, tmp_path / "other")
    (used := tmp_path / "used" / "pair").mkdir(parents=True)
    (used / "1").mkdir()
    with socket.create_server(("127.0.0.1", 0)) as listener:
        cases = (
            (("--keys", tmp_path / "keys"), "keys:1: "),
            (("--tls-certificate", onnx, "--tls-key", onnx), "not a certificate"),
            (("--grpc-port", listener.getsockname()[1]), "another port: --grpc-port"),
            (("--unix-socket", tmp_path / "keys"), "there is something that is no socket"),
            (("--shape", "input"), "--shape"),
            (("--labels", tmp_path / "labels"), "labels: No such file"),
            (("--repository", used.parent), "something else is there"),
        )
        for words, reason in cases:
            refused = cli("up", onnx, "--memory", "400MiB", "--port", 0, *words)
            assert (refused.code, reason in refused.err) == (BAD, True), refused.err
            assert not (onnx.parent / ".layerstream").exists()
            assert not (used / "made.json").exists()


def test_a_link_in_a_repository_of_the_user_stays(packs: Packs, tmp_path: Path) -> None:
    (tmp_path / "packs").mkdir()
    link = tmp_path / "packs" / "tiny"
    (hidden := tmp_path / ".layerstream").mkdir()
    (source,) = sources_of([packs.repository / "tiny"], {})
    for target in (packs.repository / "pair", tmp_path / "nowhere"):
        link.unlink(missing_ok=True)
        link.symlink_to(target)
        with pytest.raises(InputError, match=r"a link to .* which stays"):
            check_sources([source], link.parent)
        with pytest.raises(InputError, match=r"a link to .* which stays"):
            pack_of(source, link.parent, ISA)
        assert link.readlink() == target
        (hidden / "tiny").unlink(missing_ok=True)
        (hidden / "tiny").symlink_to(target)
        assert pack_of(source, hidden, ISA).resolve() == packs.repository / "tiny"


@pytest.mark.usefixtures("in_process")
def test_a_file_that_cannot_be_compiled_leaves_the_others_to_be_served(
    cli: Cli, onnx: Path, packs: Packs, monkeypatch: pytest.MonkeyPatch
) -> None:
    served: list[tuple[str, ...]] = []
    monkeypatch.setattr(
        "cli.up.start_server", lambda launch: served.append(launch.settings().models)
    )
    bad = onnx.with_name("bad.onnx")
    bad.write_text("no model")
    command = ("up", bad, "--memory", "512MB", "--port", 0)
    standalone = cli(*command)
    assert (standalone.code, served) == (BAD, [])
    assert standalone.out.startswith(f"# bad is not served: {bad}: ")
    assert not (onnx.parent / ".layerstream").exists()
    several = cli(*command, packs.repository / "tiny")
    assert (several.code, served) == (0, [("tiny",)])
    assert several.out == standalone.out


def test_memory_that_is_not_there_is_refused_before_anything_is_compiled(
    cli: Cli, onnx: Path
) -> None:
    for size, reason in (("900TiB", "more than"), ("24MB", "leave nothing")):
        assert reason in cli("up", onnx, "--memory", size, "--port", 0).err
    assert not (onnx.parent / ".layerstream").exists()


@pytest.mark.usefixtures("in_process")
def test_packs_lie_next_to_a_link_to_a_file(
    cli: Cli, onnx: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("cli.up.start_server", lambda launch: None)
    link = tmp_path / "here" / "net.onnx"
    link.parent.mkdir()
    link.symlink_to(onnx)
    assert cli("up", link, "--memory", "400MiB", "--port", 0).code == 0
    assert versions(link.parent / ".layerstream" / "net")
    assert not (onnx.parent / ".layerstream").exists()


def test_memory_that_is_not_there_is_refused(
    cli: Cli, packs: Packs, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    arguments = (packs.repository / "tiny", "--repository", tmp_path / "packs", "--port", 0)
    assert "more than" in cli("up", *arguments, "--memory", "900TiB").err
    monkeypatch.setattr("cli.up.free_bytes", lambda: 0)  # the system does not say
    assert "--memory instead" in cli("up", *arguments).err


def test_without_memory_it_has_half_of_what_is_free(
    cli: Cli, packs: Packs, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    served: list[Settings] = []
    monkeypatch.setattr("cli.up.start_server", lambda launch: served.append(launch.settings()))
    monkeypatch.setattr("cli.up.free_bytes", lambda: 1 << 30)
    arguments = (packs.repository / "tiny", "--repository", tmp_path / "packs", "--port", 0)
    assert "half of what is free is taken, 512.0 MiB" in cli("up", *arguments).err
    assert cli("up", *arguments, "--budget", "16MiB").err == ""
    assert [(item.memory, item.budget) for item in served] == [(1 << 29, None), (None, 16 << 20)]
