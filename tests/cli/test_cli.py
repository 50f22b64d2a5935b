"""The ``layerstream`` command: what it prints, and one line and the right status when it cannot."""

import json
import logging
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import onnx.parser
import pytest
from numpy.typing import NDArray

from cli.process import run_process
from cli.running.files import save_outputs
from cli.serving import Launch
from models.packs.pack import open_pack
from pipeline.budget import search
from pipeline.execution.engine import Engine
from server.operation.starting import StartupError
from server.settings.settings import Settings
from server.settings.table import settings_table
from server.transport.listener import listen
from tests.examples import over
from tests.server.support import (
    BAD,
    FAILED,
    LABELS,
    LIMIT_SECONDS,
    Cli,
    Packs,
    Result,
    arrays,
    close,
    inputs_for,
    picture,
    request,
)


@pytest.fixture
def tiny(packs: Packs) -> Path:
    return packs.repository / "tiny"


def test_help(cli: Cli) -> None:
    shown = cli("--help")
    assert shown.code == 0
    for command in ("zoo", "compile", "inspect", "run", "bench", "serve"):
        assert command in shown.out
        assert cli(command, "--help").code == 0


@pytest.mark.parametrize(
    "command", ["compile", "plan", "run", "serve", "simulate", "bench pipeline", "zoo build"]
)
def test_help_at_80_columns_is_not_cut(
    cli: Cli, monkeypatch: pytest.MonkeyPatch, command: str
) -> None:
    monkeypatch.setattr("typer.rich_utils.MAX_WIDTH", 80)
    shown = cli(*command.split(), "--help").out
    assert shown
    assert "…" not in shown


def test_the_help_of_serve_is_that_of_the_settings(cli: Cli) -> None:
    shown = " ".join(cli("serve", "--help").out.split())
    for item in settings_table():
        assert f"{item.flag} {item.value}".rstrip() in shown
        assert f" {item.panel} " in shown
        assert item.meaning.split(",", maxsplit=1)[0] in shown
    assert "--model " not in shown  # it is taken, and not shown


def test_an_interrupt_is_one_line(
    cli: Cli, tiny: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt(engine: Engine, *arguments: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(Engine, "answer", interrupt)
    image = write(tmp_path / "cat.png", picture())
    cli("run", tiny, "--image", image).refuses(130, "interrupted")


def test_an_interrupt_of_the_process_that_serves_is_one_line(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt(launch: Launch) -> None:
        raise KeyboardInterrupt

    # The tests' process is not its own.
    monkeypatch.setattr("cli.process.claim_process", lambda: None)
    monkeypatch.setattr(logging, "lastResort", logging.lastResort)
    with pytest.raises(SystemExit) as finished:
        run_process(lambda: interrupt(Launch({}, None)))
    assert finished.value.code == 130
    assert capsys.readouterr().err == "layerstream: interrupted\n"


def test_an_interrupt_while_an_interpreter_starts_is_one_line(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It waits until the command can answer it: what starts another interpreter blocks the signal."""
    monkeypatch.setattr("cli.process.claim_process", lambda: None)
    monkeypatch.setattr(logging, "lastResort", logging.lastResort)
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    signal.raise_signal(signal.SIGINT)
    with pytest.raises(SystemExit) as finished:
        run_process(lambda: pytest.fail("the command has begun"))
    assert finished.value.code == 130
    assert capsys.readouterr().err == "layerstream: interrupted\n"
    assert signal.SIGINT not in signal.pthread_sigmask(signal.SIG_BLOCK, ())


def test_no_command_is_bad_usage(cli: Cli) -> None:
    result = cli()
    assert result.code == BAD
    assert "Usage" in result.out + result.err


@over(
    "arguments",
    [
        ["frob"],
        ["--frob"],
        ["zoo", "frob"],
        ["compile"],
        ["inspect"],
        ["bench", "pipeline"],
        ["zoo", "build", "resnet18"],
        ["run", "x", "--threads", "0"],
        ["run", "x", "--top-k", "many"],
        ["serve", "--port", "http"],
    ],
)
def test_bad_usage(cli: Cli, arguments: list[str]) -> None:
    cli(*arguments).refuses(BAD)


def test_zoo_list(cli: Cli) -> None:
    entries = cli("zoo", "list", "--json").document
    assert {"resnet18", "resnet50", "vgg16"} <= {entry["name"] for entry in entries}
    for entry in entries:
        assert set(entry) == {"name", "description", "parameters", "resolution"}
    table = cli("zoo", "list")
    assert table.code == 0
    assert all(entry["name"] in table.out for entry in entries)


def test_zoo_build(cli: Cli, tmp_path: Path) -> None:
    file = tmp_path / "r.onnx"
    built = cli("zoo", "build", "resnet18", "--resolution", 32, "-o", file, "--json").document
    assert built == {
        "name": "resnet18",
        "file": str(file),
        "bytes": file.stat().st_size,
        "resolution": 32,
        "layers": 21,
        "weight_bytes": 46_796_448,
        "largest_layer_bytes": 512 * 512 * 9 * 4 + 4 * 512 * 4,
        "parameters": 11_689_512,
        "tool": "layerstream",
    }
    model = onnx.load(file)
    shape = [dim.dim_value for dim in model.graph.input[0].type.tensor_type.shape.dim]
    assert shape == [1, 3, 32, 32]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["lenet", "-o", "x.onnx"], ["'lenet'", "resnet18"]),
        (["resnet18", "--resolution", "31", "-o", "x.onnx"], ["31", "32"]),
        (["yolov3", "--resolution", "33", "-o", "x.onnx"], ["33", "multiple of 32"]),
        (["resnet18", "--resolution", "32", "-o", "none/x.onnx"], ["none/x.onnx"]),
        (["resnet18", "--resolution", "32", "-o", "."], ["Is a directory"]),
    ],
)
def test_zoo_build_that_cannot(
    cli: Cli,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    arguments: list[str],
    words: list[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    cli("zoo", "build", *arguments).refuses(BAD, *words)
    assert list(tmp_path.iterdir()) == []


@pytest.fixture
def recipe(tmp_path: Path) -> dict[str, Path]:
    """Labels and preprocessing as files."""
    labels, preprocess = tmp_path / "labels.txt", tmp_path / "preprocess.toml"
    labels.write_text("\n".join(LABELS))
    preprocess.write_text("size = [16, 16]\nscale = 0.00392156862745098\n")
    return {"--labels": labels, "--preprocess": preprocess}


def test_compile_inspect_run(
    cli: Cli, packs: Packs, tmp_path: Path, recipe: dict[str, Path]
) -> None:
    destination = tmp_path / "repository" / "model"
    options = [part for option in recipe.items() for part in option]
    summary = cli(
        "compile", packs.sources["tiny"], "-o", destination, "--chunk", "16KiB", "--json", *options
    ).document
    assert summary.pop("warnings") == []
    assert summary["model"] == "model"
    assert summary["labels"] == len(LABELS)
    assert Path(summary["folder"]) == destination / "1"
    manifest = open_pack(destination).manifest
    assert summary["weight_bytes"] == manifest.weight_bytes
    assert summary["spans"] == len(manifest.spans)
    assert summary.pop("source_files") == [str(packs.sources["tiny"])]

    inspected = cli("inspect", destination, "--layers", "--json").document
    table = inspected.pop("layer_table")
    assert inspected.pop("one_pass")["pieces"] == 0  # of this machine, not of the pack
    assert inspected.pop("evaluations") == []
    assert inspected == summary
    assert sum(layer["weight_bytes"] for layer in table) == summary["weight_bytes"]
    shown = cli("inspect", destination, "--layers")
    assert shown.code == 0
    assert str(summary["folder"]) in shown.out
    assert f"{summary['parameters']:,} parameters" in shown.out

    image = tmp_path / "cat.png"
    image.write_bytes(picture())
    answer = cli("run", destination, "--image", image, "--top-k", 3, "--json").document
    assert len(answer["predictions"]) == 3
    assert {prediction["label"] for prediction in answer["predictions"]} <= set(LABELS)


def test_compile_says_what_it_made(cli: Cli, packs: Packs, tmp_path: Path) -> None:
    result = cli("compile", packs.sources["pair"], "-o", tmp_path / "pair")
    assert result.code == 0
    assert re.search(r"pair/1: .* of weights in \d+ spans, \d+ pieces; serves from", result.out)
    (suggested,) = (line for line in result.out.splitlines() if "layerstream serve" in line)
    assert set(re.findall(r"--\S+", suggested)) <= {item.flag for item in settings_table()}
    cli("compile", packs.sources["pair"], "-o", tmp_path / "pair").refuses(BAD, "pair/1")
    again = cli("compile", packs.sources["pair"], "-o", tmp_path / "pair", "--force")
    assert again.code == 0


def write(path: Path, data: bytes) -> Path:
    path.write_bytes(data)
    return path


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--chunk", "big"], ["--chunk", "'big'"]),
        (["--shape", "image=1,x"], ["--shape", "image=1,x"]),
        (["--shape", "image"], ["--shape"]),
        (["--scores", "points"], ["--scores"]),
        (["--labels", "none.txt"], ["none.txt"]),
        (["--preprocess", "none.toml"], ["none.toml"]),
        (["--batch", "0"], ["batch"]),
        (["--version", "0"], ["version"]),
    ],
)
def test_compile_options_that_are_wrong(
    cli: Cli, packs: Packs, tmp_path: Path, options: list[str], words: list[str]
) -> None:
    result = cli("compile", packs.sources["tiny"], "-o", tmp_path / "model", *options)
    result.refuses(BAD, *words)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("name", ["none.onnx", "text.onnx", "empty.onnx", "cut.onnx"])
def test_compile_what_is_not_onnx(cli: Cli, packs: Packs, tmp_path: Path, name: str) -> None:
    write(tmp_path / "text.onnx", b"not a model at all, just text\n")
    write(tmp_path / "empty.onnx", b"")
    write(tmp_path / "cut.onnx", packs.sources["tiny"].read_bytes()[:1000])
    cli("compile", tmp_path / name, "-o", tmp_path / "model").refuses(BAD, name)
    assert not (tmp_path / "model").exists()


def test_run_tensors_in_and_out(cli: Cli, packs: Packs, tmp_path: Path) -> None:
    inputs = inputs_for("pair")
    np.savez(tmp_path / "in.npz", allow_pickle=False, **inputs)
    output = tmp_path / "out.npz"
    result = cli(
        *("run", packs.repository / "pair", "--input", tmp_path / "in.npz", "--output", output),
        *("--json", "--architecture", "seq", "--ring", "20KiB", "--verify", "always"),
    ).document
    assert result["plan"]["architecture"] == "seq"
    assert result["plan"]["ring_bytes"] == 20 << 10
    assert result["read_bytes"] > 0
    with np.load(output) as written:
        close(dict(written), packs.expected("pair", inputs))


def test_run_one_tensor(cli: Cli, packs: Packs, tiny: Path, tmp_path: Path) -> None:
    inputs = inputs_for("tiny")
    np.save(tmp_path / "in.npy", inputs["image"])
    output = tmp_path / "out.npy"
    shown = cli("run", tiny / "1", "--input", tmp_path / "in.npy", "--output", output)
    assert shown.code == 0
    assert "logits: float32 [1, 10]" in shown.out
    close({"logits": np.load(output)}, packs.expected("tiny", inputs))


@over(
    "array",
    [
        np.arange(200_000, dtype=np.float32).reshape(2, 100_000),
        np.asfortranarray(np.arange(6, dtype=np.int64).reshape(2, 3)),
        np.arange(12, dtype=np.uint8).reshape(3, 4)[:, ::2],
        np.array(True),
        np.zeros((0, 4), np.float16),
        np.array(["a", "\u00e9\u00e9"], object),
    ],
)
@pytest.mark.parametrize("name", ["y.npy", "y.npz"])
def test_outputs_are_files_that_numpy_reads(array: NDArray[Any], name: str, tmp_path: Path) -> None:
    save_outputs(tmp_path / name, {"y": array})
    loaded = np.load(tmp_path / name)
    again = loaded if name == "y.npy" else loaded["y"]
    assert again.tolist() == array.tolist()
    assert again.shape == array.shape
    assert array.dtype in (again.dtype, np.dtype(object))


def test_run_a_model_without_inputs(cli: Cli, tmp_path: Path) -> None:
    model = onnx.parser.parse_model(
        '<ir_version: 8, opset_import: ["" : 17]> g () => (float[3] y) <float[3] a = {-1, 2, 3}>'
        "{ y = Relu(a) }"
    )
    onnx.save(model, tmp_path / "m.onnx")
    np.savez(tmp_path / "none.npz")
    np.save(tmp_path / "one.npy", np.zeros(1, np.float32))
    assert cli("compile", tmp_path / "m.onnx", "-o", tmp_path / "packs" / "m").code == 0
    pack = tmp_path / "packs" / "m"
    for given in ([], ["--input", tmp_path / "none.npz"]):
        assert cli("run", pack, *given, "--output", tmp_path / "out.npy").code == 0
        assert np.load(tmp_path / "out.npy").tolist() == [0, 2, 3]
    cli("run", pack, "--input", tmp_path / "one.npy").refuses(BAD, "one.npy", "has no inputs")


def test_run_an_image(cli: Cli, tiny: Path, tmp_path: Path) -> None:
    image = write(tmp_path / "cat.jpg", picture(kind="JPEG"))
    shown = cli("run", tiny, "--image", image, "--top-k", 2)
    assert shown.code == 0
    assert len(re.findall(r"class \d", shown.out)) == 2


def test_one_answer_waits_for_no_search(
    cli: Cli, tiny: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(search, "BRIEF_SECONDS", 0)  # whatever is not known takes too long
    image = write(tmp_path / "cat.png", picture())
    least = cli("inspect", tiny, "--json").document["smallest_budget_bytes"]
    asked = ("run", tiny, "--image", image, "--budget", f"{least + (16 << 10)}B")
    hint = "found without a search"
    assert hint in cli(*asked).out
    assert hint not in cli(*asked, "--repeat", 1).out  # which measures, and has searched


def test_run_repeats_warm(cli: Cli, tiny: Path, tmp_path: Path) -> None:
    """As bench measures; the first answer stays apart, and what was JSON without it is JSON with it."""
    image = write(tmp_path / "cat.png", picture())
    once = cli("run", tiny, "--image", image, "--json").document
    plan = once["plan"]
    parts = ("weight", "arena", "scratch", "io", "session", "object", "request")
    assert plan["total_bytes"] == sum(plan[f"{part}_bytes"] for part in parts)
    often = cli("run", tiny, "--image", image, "--repeat", 3, "--json").document
    repeats = often.pop("repeats")
    assert often.keys() == once.keys()
    assert often["predictions"] == once["predictions"]
    assert repeats["runs"] == 3
    delay = repeats["delay_ms"]
    assert 0 < delay["min"] <= delay["median"] <= delay["p95"] <= delay["max"]
    assert repeats["cpu_seconds"] > 0
    shown = cli("run", tiny, "--image", image, "--repeat", 3).out
    assert re.search(
        r"^first answer: [\d.]+ ms, of which [\d.]+ ms waiting for weights$", shown, re.M
    )
    assert re.search(
        r"^3 more, warm: median [\d.]+ ms, from [\d.]+ to [\d.]+ ms, 95 % ", shown, re.M
    )


def test_repeats_run_one_engine(
    cli: Cli, tiny: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Opened once; a warm-up comes between the first answer and those that count."""
    opened: list[Engine] = []
    sweeps: list[Engine] = []
    open_engine, answer = Engine.open, Engine.answer

    def counted(engine: Engine, *args: Any, **kwargs: Any) -> Any:
        sweeps.append(engine)
        return answer(engine, *args, **kwargs)

    def noted(engine: Engine) -> None:
        opened.append(engine)
        open_engine(engine)

    monkeypatch.setattr(Engine, "open", noted)
    monkeypatch.setattr(Engine, "answer", counted)
    image = write(tmp_path / "cat.png", picture())
    assert cli("run", tiny, "--image", image, "--repeat", 4).code == 0
    assert len(opened) == 1
    assert len(sweeps) > 1 + 4
    assert set(map(id, sweeps)) == {id(opened[0])}


@pytest.fixture
def files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Tensors in the working directory: good ones, and wrong ones of every kind."""
    monkeypatch.chdir(tmp_path)
    good = inputs_for("pair")
    np.savez("good.npz", allow_pickle=False, **good)
    np.savez("wide.npz", allow_pickle=False, x=good["x"].astype(float), steps=good["steps"])
    np.savez("half.npz", allow_pickle=False, x=good["x"])
    np.savez("more.npz", allow_pickle=False, y=good["x"], **good)
    np.save("objects.npy", np.array([{}]), allow_pickle=True)
    whole = Path("good.npz").read_bytes()
    write(Path("cut.npz"), whole[:100])
    write(Path("damaged.npz"), whole.replace(b"NUMPY", b"numpy"))
    write(Path("text.npy"), b"not an array")
    write(Path("cat.png"), picture())
    Path("folder").mkdir()


@over(
    "pack, options, words",
    [
        ("none", ["--input", "good.npz"], ["none"]),
        ("pair", [], ["--image", "--input"]),
        ("pair", ["--input", "good.npz", "--image", "cat.png"], ["--image", "--input"]),
        ("pair", ["--image", "cat.png"], ["--preprocess"]),
        ("tiny", ["--image", "none.png"], ["none.png: no such file"]),
        ("tiny", ["--image", "."], [".: not a file"]),
        ("tiny", ["--image", "text.npy"], ["text.npy", "not an image"]),
        ("pair", ["--input", "none.npy"], ["none.npy", "No such file"]),
        ("pair", ["--input", "text.npy"], ["text.npy"]),
        ("pair", ["--input", "cut.npz"], ["cut.npz"]),
        ("pair", ["--input", "damaged.npz"], ["damaged.npz"]),
        ("pair", ["--input", "objects.npy"], ["objects.npy: no tensors", "Python objects"]),
        ("pair", ["--input", "wide.npz"], ["'x'", "float64"]),
        ("pair", ["--input", "half.npz"], ["'steps'", "missing"]),
        ("pair", ["--input", "more.npz"], ["'y'"]),
        (
            "pair",
            ["--input", "good.npz", "--ring", "4KiB"],
            ["4.0 KiB (4096 bytes)", "give as much"],
        ),
        ("pair", ["--input", "good.npz", "--ring", "some"], ["--ring", "'some'"]),
        ("pair", ["--input", "good.npz", "--architecture", "9s"], ["--architecture", "'9s'"]),
        ("pair", ["--input", "good.npz", "--output", "out.npy"], ["out.npy", ".npz"]),
        ("tiny", ["--image", "cat.png", "--output", "folder"], ["folder: Is a directory"]),
    ],
)
@pytest.mark.usefixtures("files")
def test_run_that_cannot(
    cli: Cli, packs: Packs, pack: str, options: list[str], words: list[str]
) -> None:
    cli("run", packs.repository / pack, *options).refuses(BAD, *words)


def test_a_damaged_pack(cli: Cli, packs: Packs, tmp_path: Path) -> None:
    folder = tmp_path / "pair" / "1"
    folder.mkdir(parents=True)
    for file in (packs.repository / "pair" / "1").iterdir():
        write(folder / file.name, file.read_bytes())
    np.savez(tmp_path / "in.npz", allow_pickle=False, **inputs_for("pair"))
    weights = bytearray((folder / "weights.bin").read_bytes())
    weights[len(weights) // 2] ^= 1
    write(folder / "weights.bin", bytes(weights))
    where = f"{folder / 'weights.bin'}: bytes ["
    cli("run", folder, "--input", tmp_path / "in.npz").refuses(FAILED, where, "damaged")
    write(folder / "weights.bin", bytes(weights[:-1]))
    cli("inspect", folder).refuses(BAD, "weights.bin", "truncated")
    write(folder / "manifest.json", b"{")
    cli("inspect", folder).refuses(BAD, "manifest.json", "not JSON")
    (folder / "manifest.json").unlink()
    cli("inspect", folder.parent).refuses(BAD, "manifest.json")


def test_outputs_that_cannot_be_written(cli: Cli, tiny: Path, tmp_path: Path) -> None:
    image = write(tmp_path / "cat.png", picture())
    result = cli("run", tiny, "--image", image, "--output", tmp_path / "none" / "out.npy")
    result.refuses(BAD, "none/out.npy: No such file")  # as of --draw, compile and zoo build
    assert cli("run", tiny, "--image", image, "--output", tmp_path / "plain").code == 0
    assert np.load(tmp_path / "plain").size


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"--budget": "lots"}, ["budget", "'lots'"]),
        ({"--budget": None}, ["budget", "--budget", "LAYERSTREAM_BUDGET"]),
        ({"--repository": None}, ["repository", "--repository", "LAYERSTREAM_REPOSITORY"]),
        ({"--repository": "none"}, ["none", "no such folder"]),
        ({"--repository": ".", "--model-control": "none"}, ["no packs", "compile", "explicit"]),
        ({"--port": "70000"}, ["--port:", "70000"]),
        ({"--models": "tiny,none"}, ["'none'"]),
        ({"--architecture": "9s"}, ["architecture", "'9s'"]),
        ({"--budget": "64KiB", "--model": "tiny"}, ["requests take", "free are 64.0 KiB"]),
        ({"--budget": "2100KiB", "--model": "tiny"}, ["'tiny'", "needs", "of 2.1 MiB"]),
        ({"--model": "none"}, ["'none'"]),
        ({"--config": "none.toml"}, ["none.toml"]),
        ({"--host": "192.0.2.1"}, ["cannot listen on 192.0.2.1"]),
        ({"--verify": "never"}, ["verify"]),
        ({"--log-format": "xml"}, ["--log-format", "'text' or 'json'", "not 'xml'"]),
    ],
)
def test_serve_that_cannot(
    cli: Cli,
    packs: Packs,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    options: dict[str, str | None],
    words: list[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    chosen = {"--repository": packs.repository, "--budget": "4MiB", "--port": "0", **options}
    given = [part for name, value in chosen.items() if value for part in (name, value)]
    cli("serve", *given).refuses(BAD, *words)


def test_a_fault_in_the_settings_is_the_status_that_the_service_manager_shows(
    cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "layerstream.toml").write_text('budget = "1GiB"\nqueue_limt = 3\n')
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.bind(str(tmp_path / "notify"))
        manager.setblocking(False)
        monkeypatch.setenv("NOTIFY_SOCKET", str(tmp_path / "notify"))
        cli("serve", "--config", tmp_path / "layerstream.toml").refuses(BAD, "queue_limt")
        status = manager.recv(4096).decode()
    assert status.startswith("STATUS=ended: ")
    assert "layerstream.toml:2: queue_limt: no such setting" in status


def test_serve_on_a_port_in_use(cli: Cli, packs: Packs) -> None:
    with listen("127.0.0.1", 0) as taken:
        port = taken.getsockname()[1]
        result = cli("serve", "--repository", packs.repository, "--budget", "4MiB", "--port", port)
        result.refuses(BAD, f"127.0.0.1:{port}", "in use")


def command(*arguments: object) -> list[str]:
    return [sys.executable, "-m", "cli", *map(str, arguments)]


def test_the_process_ends_with_that_status_and_line(tmp_path: Path) -> None:
    done = subprocess.run(
        command("inspect", tmp_path / "none"), capture_output=True, text=True, check=False
    )
    Result(done.returncode, done.stdout, done.stderr).refuses(BAD, "none: no such folder")


@pytest.mark.parametrize(
    "number", [signal.SIGTERM, pytest.param(signal.SIGINT, marks=pytest.mark.slow)]
)
def test_serve_until_told_to_stop(packs: Packs, number: signal.Signals) -> None:
    options = ["--repository", packs.repository, "--budget", "4MiB", "--port", 0, "--threads", 1]
    options += ["--access-log", "all", "--log-format", "json"]
    environment = {**os.environ, "PYTHONUNBUFFERED": "1"}
    with subprocess.Popen(
        command("serve", *options, "--model", "tiny"),
        stderr=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env=environment,
    ) as process:
        assert process.stderr is not None
        assert process.stdout is not None
        lines = []
        try:
            for line in process.stderr:
                lines.append(line)
                if "serving tiny" in line:
                    break
            found = re.search(r"http://127\.0\.0\.1:\d+", lines[-1])
            assert found, lines
            with httpx.Client(base_url=found[0], trust_env=False, timeout=LIMIT_SECONDS) as client:
                inputs = inputs_for("tiny")
                response = client.post("/v2/models/tiny/infer", json=request(inputs))
                close(arrays(response), packs.expected("tiny", inputs))
                process.send_signal(number)
            out, rest = process.communicate(timeout=LIMIT_SECONDS)
        finally:
            process.kill()
    assert process.returncode == 0
    assert out == ""
    documents = [json.loads(line) for line in (*lines, *rest.splitlines())]
    assert any(document.get("path") == "/v2/models/tiny/infer" for document in documents)
    assert not any("exception" in document for document in documents)


def test_values_by_model_are_given_together_or_one_by_one(
    cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    served: list[Settings] = []
    monkeypatch.setattr("server.serve.run", lambda settings, tell: served.append(settings))
    given = ("serve", "--repository", tmp_path, "--budget", "16MiB")
    apart = ("--deadline", "a=0.1", "--lanes", "b=2", "--deadline", "b=2", "--lanes", "3")
    for flags in (apart, ("--deadline", "b=2,a=0.1", "--lanes", "3,b=2")):
        assert cli(*given, *flags).code == 0
        assert served[-1].deadline == {"a": 0.1, "b": 2.0}
        assert served[-1].lanes == {"*": 3, "b": 2}
    cli(*given, "--deadline", "a=1", "--deadline", "a=2").refuses(BAD, "--deadline", "contradicts")


@pytest.mark.parametrize("may_pass", [False, True])
def test_a_start_that_may_go_better_the_next_time_is_a_failure(
    cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, may_pass: bool
) -> None:
    """A service manager starts it again then, and not after bad input."""

    def fails(*_: object) -> None:
        raise StartupError("model 'm': Input/output error", may_pass=may_pass)

    monkeypatch.setattr("server.serve.run", fails)
    refused = cli("serve", "--repository", tmp_path, "--budget", "16MiB")
    refused.refuses(FAILED if may_pass else BAD, "Input/output error")


def test_a_refusal_of_several_models_is_a_line_each(cli: Cli, packs: Packs, tmp_path: Path) -> None:
    for name in ("pair", "tiny"):
        shutil.copytree(packs.repository / name, tmp_path / name)
        (tmp_path / name / "1" / "manifest.json").write_text("{}")
    refused = cli("serve", "--repository", tmp_path, "--budget", "64MiB", "--port", 0)
    assert refused.code == BAD
    lines = refused.err.splitlines()[-2:]
    for name, line in zip(("pair", "tiny"), lines, strict=True):
        assert line.startswith(f"layerstream: model '{name}': {tmp_path / name / '1'}")


@pytest.mark.parametrize(
    ("error", "status"),
    [(PermissionError(13, "Permission denied"), BAD), (OSError(5, "Input/output error"), FAILED)],
)
def test_a_repository_that_cannot_be_read_is_named(
    cli: Cli, packs: Packs, monkeypatch: pytest.MonkeyPatch, error: OSError, status: int
) -> None:
    def fails(folder: Path) -> list[str]:
        raise error

    monkeypatch.setattr("server.repository.catalog.model_names", fails)
    refused = cli("serve", "--repository", packs.repository, "--budget", "64MiB", "--port", "0")
    refused.refuses(status, f"repository {packs.repository}: {error.strerror}")


def test_a_system_that_allows_no_threads_is_one_line(
    cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(*_: object) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr("server.serve.run", fails)
    cli("serve", "--repository", tmp_path, "--budget", "16MiB").refuses(FAILED, "no more threads")
