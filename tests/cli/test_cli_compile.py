"""What ``compile`` and its neighbours say to a stranger: warnings, refusals, sizes that work."""

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import numpy_helper

from models.packs.pack import open_pack
from models.packs.target import host_target
from pipeline.checking import Depth
from tests.cli.test_cli_darknet import DETECTOR
from tests.models.nets import gemm, parsed, written
from tests.server.support import BAD, FAILED, Cli, Packs


def indices(*values: int) -> onnx.ModelProto:
    model = parsed("g (float[3,4] x) => (float y) { y = Gather(x, i) }")
    model.graph.initializer.append(numpy_helper.from_array(np.array(values, np.int64), "i"))
    return model


def layer(batch: int | str) -> onnx.ModelProto:
    """A matrix of about 1 MiB, cut where the batch is 1: its channels do not fill blocks."""
    text = f"b (float[{batch},512] x) => (float y) {{ y = Gemm<transB=1>(x, w) }}"
    return parsed(text, {"w": (508, 512)})


def test_what_can_only_fail_is_refused_and_leaves_nothing(cli: Cli, tmp_path: Path) -> None:
    source = written(indices(0, 5), tmp_path / "m.onnx")
    cli("compile", source, "-o", tmp_path / "r" / "m").refuses(BAD, str(source), "Gather", "'y'")
    assert not (tmp_path / "r" / "m").exists()
    assert cli("compile", source, "-o", tmp_path / "r" / "m", "--no-check").code == 0


def test_how_a_pack_is_checked_is_an_option(
    cli: Cli, packs: Packs, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    checks: list[tuple[Depth, int | None]] = []

    def recorded(*arguments: Any, depth: Depth, **_others: Any) -> list[str]:
        checks.append((depth, arguments[4]))
        return ["odd"]

    monkeypatch.setattr("pipeline.checking.checker.check_with_threads", recorded)
    monkeypatch.setattr("os.sched_getaffinity", lambda _process: {0, 1})
    for index, words in enumerate(([], ["--check", "quick"], ["--no-check"])):
        done = cli("compile", packs.sources["tiny"], "-o", tmp_path / "r" / f"m{index}", *words)
        assert done.code == 0
        assert done.err.count("odd") == int("--no-check" not in words)  # not twice
    assert checks == [("full", None), ("full", 1), ("quick", None)]
    other = cli("compile", packs.sources["tiny"], "-o", tmp_path / "r" / "n", "--check", "some")
    other.refuses(BAD, "--check", "quick", "full")


def test_a_full_disk_is_a_failure_that_may_pass(
    cli: Cli, packs: Packs, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = packs.sources["tiny"]
    with monkeypatch.context() as patch:
        patch.setattr("shutil.disk_usage", lambda _path: SimpleNamespace(free=0))
        refused = cli("compile", source, "-o", tmp_path / "packs" / "m")
    assert (refused.code, "no space to compile" in refused.err) == (FAILED, True)
    assert cli("compile", source, "-o", tmp_path / "packs" / "m").code == 0


def test_the_smallest_budget_works_when_typed_back(cli: Cli, tmp_path: Path) -> None:
    source = written(gemm(), tmp_path / "m.onnx")
    said = cli("compile", source, "-o", tmp_path / "m").out
    shown = said.partition("from a budget of ")[2].partition(" up")[0]
    assert cli("plan", tmp_path / "m", "--budget", shown).code == 0
    inspected = cli("inspect", tmp_path / "m").out
    line = next(line for line in inspected.splitlines() if line.startswith("budget"))
    assert line.split()[2] == shown
    cli("plan", tmp_path / "m", "--budget", "16").refuses(BAD, "--budget", "16MiB", "16KiB", "16B")


def test_one_number_is_enough_for_inspect_run_and_plan(cli: Cli, tmp_path: Path) -> None:
    """Also where inputs and outputs are large, and inputs are needed again: outputs are never held."""
    text = (
        "wide (float[1,3,256,256] x) => (float[1,4,256,256] y) { y = Conv<pads=[1,1,1,1]>(x, w) }"
    )
    source = written(parsed(text, {"w": (4, 3, 3, 3)}), tmp_path / "m.onnx")
    pack = tmp_path / "r" / "m"
    assert cli("compile", source, "-o", pack).code == 0
    least = cli("inspect", pack, "--json").document["smallest_budget_bytes"]
    (listed,) = cli("list", tmp_path / "r", "--json").document["models"]
    assert listed["smallest_budget_bytes"] == least
    np.save(tmp_path / "x.npy", np.ones((1, 3, 256, 256), np.float32))
    asked = ("run", pack, "--input", tmp_path / "x.npy", "--budget", f"{least}B", "--json")
    keeps = "--output", tmp_path / "y.npy"
    for more in ((), keeps, ("--repeat", 1), (*keeps, "--repeat", 1)):
        ran = cli(*asked, *more).document["plan"]
        assert ran["total_bytes"] <= least
        (planned,) = cli("plan", pack, f"--budget={least}B", "--json").document["packs"]
        assert planned["total_bytes"] == ran["total_bytes"] - ran["request_bytes"]
    less = f"--budget={least - 1}B"
    for command in (("plan", pack), ("run", pack, "--input", tmp_path / "x.npy")):
        cli(*command, less).refuses(BAD, "enough")


@pytest.mark.skipif(host_target().block == 1, reason="no blocked layout here: batches have chunks")
def test_a_batch_that_keeps_layers_whole_is_a_warning(cli: Cli, tmp_path: Path) -> None:
    source = written(layer("n"), tmp_path / "m.onnx")
    one = cli("compile", source, "-o", tmp_path / "one", "--batch", "1", "--json")
    assert one.document["warnings"] == []
    several = cli("compile", source, "-o", tmp_path / "several", "--batch", 3, "--json")
    (warning,) = json.loads(several.out)["warnings"]
    assert "batch of 3" in warning
    assert "1016.0 KiB" in warning
    assert several.err == f"layerstream: warning: {warning}\n"
    again = cli("compile", source, "-o", tmp_path / "fixed", "--batch", 3, "--shape", "x=2,512")
    again.refuses(BAD, "--batch 3 changes nothing", "'x' by --shape")


@pytest.mark.parametrize(
    "text",
    [
        # The state of a recurrent network; rows of a matrix that is no batch of the other input.
        "s (float[2,1,128] h, float[1,1,128] x) => (float y, float z) "
        "{ r = ReduceSum<keepdims=1>(h)\n y, z = LSTM<hidden_size=128>(x, w, q)\n k = Add(z, r) }",
        "t (float[5,1,128] x) => (float y, float z) { y, z = LSTM<hidden_size=128>(x, w, q) }",
        "p (float[2,128] points, float[1,3] eye) => (float y, float z) "
        "{ y = Gemm<transB=1>(points, g)\n z = Neg(eye) }",
    ],
)
def test_what_is_no_batch_is_called_none(text: str, cli: Cli, tmp_path: Path) -> None:
    sizes = {"w": (1, 512, 128), "q": (1, 512, 128), "g": (508, 128)}
    weights = {
        name: size for name, size in sizes.items() if f" {name})" in text or f" {name}," in text
    }
    source = written(parsed(text, weights), tmp_path / "m.onnx")
    compiled = cli("compile", source, "-o", tmp_path / "m", "--chunk", "4KiB", "--json")
    assert not [line for line in compiled.document["warnings"] if "batch" in line]


# Outside of the blocked layout batches have chunks, too.
@pytest.mark.parametrize(("batch", "advised"), [(1, True), (2, host_target().block == 1)])
def test_a_smaller_chunk_is_advised_where_it_helps(
    batch: int, advised: bool, cli: Cli, tmp_path: Path
) -> None:
    source = written(layer(batch), tmp_path / "m.onnx")
    cli("compile", source, "-o", tmp_path / "m", "--chunk", "256KiB")
    refused = cli("plan", tmp_path / "m", "--ring", "4KiB")
    refused.refuses(BAD, "largest chunk")
    assert ("smaller --chunk" in refused.err) == advised
    least = open_pack(tmp_path / "m").manifest.least_chunk_bytes
    if advised:
        assert f"{least} bytes" in refused.err
        cli("compile", source, "-o", tmp_path / "m", "--chunk", "1B", "--force")
        assert open_pack(tmp_path / "m").manifest.largest_chunk_bytes == least


def test_optional_inputs_are_shown_and_may_be_left_out(cli: Cli, tmp_path: Path) -> None:
    model = parsed("d (float[1,8] x, float k) => (float y) { y = Mul(x, k) }")
    model.graph.initializer.append(numpy_helper.from_array(np.array(2, np.float32), "k"))
    source = written(model, tmp_path / "m.onnx")
    ports = cli("compile", source, "-o", tmp_path / "m", "--json").document["inputs"]
    assert [(port["name"], port["optional"]) for port in ports] == [("x", False), ("k", True)]
    x = np.ones((1, 8), np.float32)
    optional: tuple[tuple[dict[str, Any], int], ...] = (({}, 2), ({"k": np.float32(5)}, 5))
    for given, factor in optional:
        np.savez(tmp_path / "x.npz", x=x, **given)
        inputs, outputs = tmp_path / "x.npz", tmp_path / "y.npy"
        assert cli("run", tmp_path / "m", "--input", inputs, "--output", outputs).code == 0
        np.testing.assert_array_equal(np.load(outputs), factor * x)


@pytest.mark.parametrize(
    ("resolution", "nearest"), [(61, "60 and 64"), (3, "are: 4"), (66, "64 and 68"), (64, "")]
)
def test_resolutions_between_strides_are_refused(
    resolution: int, nearest: str, cli: Cli, tmp_path: Path
) -> None:
    """The detector halves twice: its cells are 4 pixels."""
    cfg = tmp_path / "detector.cfg"
    cfg.write_text(DETECTOR)
    result = cli("import-darknet", cfg, "-o", tmp_path / "d.onnx", "--resolution", resolution)
    if not nearest:
        assert result.code == 0
        return
    result.refuses(BAD, str(cfg), f"{resolution} pixels", "stride, 4", nearest)
    assert not (tmp_path / "d.onnx").exists()


def test_a_dimension_of_0_is_refused(cli: Cli, tmp_path: Path) -> None:
    arguments = ("compile", tmp_path / "x.onnx", "-o", tmp_path / "x", "--shape", "x=0,3,8,8")
    cli(*arguments).refuses(BAD, "'x=0,3,8,8'", "a dimension of 0")


# ``layerstream compile --target``: packs for GPUs, made and shown on a machine without one.


@pytest.fixture
def for_cuda(cli: Cli, packs: Packs, tmp_path: Path) -> Path:
    destination = tmp_path / "gpu"
    options = ("--chunk", "16KiB", "--target", "cuda-sm72")
    assert cli("compile", packs.sources["tiny"], "-o", destination, *options).code == 0
    return destination


def test_pack_for_cuda_is_compiled_and_shown(cli: Cli, for_cuda: Path) -> None:
    shown = cli("inspect", for_cuda, "--layers", "--json").document
    assert shown["target"] == {
        "isa": "cuda-sm72",
        "block": 1,
        "onnxruntime": host_target().onnxruntime,
        "exact_weights": 0,
    }
    assert "Conv+Relu" in {layer["operator"] for layer in shown["layer_table"]}
    assert "cuda-sm72" in cli("inspect", for_cuda).out


def test_pack_for_cuda_is_not_run_on_the_cpu(cli: Cli, for_cuda: Path) -> None:
    result = cli("run", for_cuda)
    assert result.code == BAD
    for part in ("cuda-sm72", host_target().isa, f"-o {for_cuda} --target {host_target().isa}"):
        assert part in result.err


@pytest.mark.parametrize("name", [pytest.param("cpu", marks=pytest.mark.slow), host_target().isa])
def test_this_machine_is_the_default(cli: Cli, packs: Packs, tmp_path: Path, name: str) -> None:
    one, other = (
        cli("compile", packs.sources["tiny"], "-o", tmp_path / folder / "m", "--json", *options)
        for folder, options in (("default", ()), ("named", ("--target", name)))
    )
    assert {**one.document, "folder": ""} == {**other.document, "folder": ""}


def test_recipes_that_lie_beside_the_file_are_read_unless_others_are_given(
    cli: Cli, tmp_path: Path
) -> None:
    """As ``up`` reads them."""
    text = "g (float[1,3,4,4] x) => (float y) { z = GlobalAveragePool(x) y = Flatten(z) }"
    source = tmp_path / "rgb.onnx"
    onnx.save(parsed(text), source)
    (tmp_path / "rgb.preprocess.toml").write_text("size = [4, 4]\nmean = [7]\n")
    (tmp_path / "rgb.labels.txt").write_text("red\ngreen\nblue\n")
    (tmp_path / "others.txt").write_text("r\ng\nb\n")
    options = ("--scores", "logits", "--json")
    made = cli("compile", source, "-o", tmp_path / "beside", *options)
    manifest = open_pack(Path(made.document["folder"])).manifest
    assert manifest.preprocess is not None
    assert manifest.preprocess.mean == (7.0,)
    assert manifest.named is not None
    assert manifest.named.labels == ("red", "green", "blue")
    assert f"rgb.onnx: --labels {tmp_path / 'rgb.labels.txt'}, which lies beside it" in made.err
    given = ("--labels", tmp_path / "others.txt")
    made = cli("compile", source, "-o", tmp_path / "given", *given, *options)
    named = open_pack(Path(made.document["folder"])).manifest.named
    assert named is not None
    assert named.labels == ("r", "g", "b")
    assert "--labels" not in made.err


def test_unknown_target_is_bad_usage(cli: Cli, packs: Packs, tmp_path: Path) -> None:
    source, output = packs.sources["tiny"], tmp_path / "m"
    result = cli("compile", source, "-o", output, "--target", "cuda-sm5")
    assert result.code == BAD
    assert "cuda-sm5" in result.err
    assert "cuda-sm70 to cuda-sm129" in result.err
    assert not output.exists()
