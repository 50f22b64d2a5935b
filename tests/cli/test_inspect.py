"""``layerstream inspect`` and ``run`` of packs with resident pieces and strings."""

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper

from cli.process import main
from models.packs.pack import Pack
from tests.models.compiler.test_resident import branches, strings
from tests.models.nets import NETS, inputs_for, written
from tests.models.sounds import compile_listener
from tests.models.streamed import compiled
from tests.models.texts import TOKENIZER_BYTES, compile_encoder, write_files


@pytest.fixture
def output(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], kept_logging: None
) -> Any:
    """Run the command in this process and return what it printed."""
    monkeypatch.setattr("cli.process.claim_process", lambda: None)

    def run(*arguments: object) -> str:
        monkeypatch.setattr(sys, "argv", ["layerstream", *map(str, arguments)])
        monkeypatch.setenv("COLUMNS", "200")
        with pytest.raises(SystemExit) as caught:
            main()
        captured = capsys.readouterr()
        assert not caught.value.code, captured.err
        return captured.out

    return run


@pytest.fixture
def flow(tmp_path: Path) -> Pack:
    return compiled(written(branches()[0], tmp_path / "flow.onnx"), tmp_path)


def test_inspect_says_what_is_resident_and_why(output: Any, flow: Pack) -> None:
    text = output("inspect", flow.folder)
    (line,) = (line for line in text.splitlines() if line.startswith("resident piece"))
    assert line.startswith("resident piece: 1 node (If), 144.0 KiB, because: node '")
    assert line.endswith("(If): control flow")


def test_inspect_lists_resident_pieces(output: Any, flow: Pack) -> None:
    (piece,) = json.loads(output("inspect", flow.folder, "--json"))["resident_pieces"]
    assert set(piece) == {"nodes", "operators", "weight_bytes", "reasons"}
    assert piece["operators"] == ["If"]
    assert piece["weight_bytes"] == 64 * 64 * 9 * 4
    assert len(piece["nodes"]) == len(piece["reasons"]) == 1


def test_a_pack_that_streams_whole_has_none(output: Any, tmp_path: Path) -> None:
    pack = compiled(written(NETS["gemm"](), tmp_path / "m.onnx"), tmp_path)
    assert json.loads(output("inspect", pack.folder, "--json"))["resident_pieces"] == []
    assert "resident piece:" not in output("inspect", pack.folder)


@pytest.mark.parametrize("architecture", ["pre", "2s", "auto"])
def test_run_takes_and_writes_strings(output: Any, tmp_path: Path, architecture: str) -> None:
    pack = compiled(written(strings()[0], tmp_path / "m.onnx"), tmp_path)
    words = np.array(["ä", "", "cc"])
    np.savez(tmp_path / "in.npz", s=words, x=inputs_for({"x": (1, 64)})["x"])
    files = ("--input", tmp_path / "in.npz", "--output", tmp_path / "out.npz")
    output("run", pack.folder, *files, "--architecture", architecture)
    with np.load(tmp_path / "out.npz") as found:
        assert found["t"].tolist() == ["ä!", "!", "cc!"]
        assert found["known"].tolist() == [True, False, False]
        assert found["y"].shape == (1, 32)


@pytest.mark.parametrize("size", [8, 2])
def test_inspect_names_the_layer_whose_unrolled_input_takes_most(
    output: Any, tmp_path: Path, size: int
) -> None:
    """Channels are not in blocks, and groups are in no chunks, of which each would have few filters."""
    nodes = [
        helper.make_node("Resize", ["x", "", "s"], ["r"], mode="linear"),
        helper.make_node("Conv", ["r", "w"], ["y"], name="wide", pads=[1] * 4, group=2),
    ]
    ports = [
        helper.make_tensor_value_info(name, TensorProto.FLOAT, shape)
        for name, shape in (("x", (1, 258, size, size)), ("y", (1, 544, 2 * size, 2 * size)))
    ]
    weights = [
        numpy_helper.from_array(np.array([1, 1, 2, 2], np.float32), "s"),
        numpy_helper.from_array(np.ones((544, 129, 3, 3), np.float32), "w"),
    ]
    graph = helper.make_graph(nodes, "m", ports[:1], ports[1:], weights)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    pack = compiled(written(model, tmp_path / "m.onnx"), tmp_path)
    found = json.loads(output("inspect", pack.folder, "--json"))
    lines = [line for line in output("inspect", pack.folder).splitlines() if "unrolled" in line]
    if size == 2:
        assert (found["unrolled"], lines) == (None, [])
        return
    n_bytes = 129 * 9 * (2 * size) ** 2 * 4
    assert found["unrolled"] == {"layer": "wide", "operator": "Conv", "bytes": n_bytes}
    assert found["scratch_bytes"] >= n_bytes
    assert len(lines) == 1
    assert "the input of wide (Conv), for which a kernel needs 1.1 MiB of scratch" in lines[0]


def test_inspect_says_what_the_smallest_budget_costs(output: Any, flow: Pack) -> None:
    found = json.loads(output("inspect", flow.folder, "--json"))
    first = found["costs"][0]
    assert first["budget_bytes"] == found["smallest_budget_bytes"]
    assert first["times"] > 0
    assert first["estimated"]
    (line,) = (row for row in output("inspect", flow.folder).splitlines() if "the time with" in row)
    assert f"about {first['times']:.1f} x the time with all its memory" in line
    assert line.endswith("(estimated)")


def test_inspect_says_what_runs_in_one_pass(output: Any, flow: Pack) -> None:
    found = json.loads(output("inspect", flow.folder, "--json"))["one_pass"]
    assert found.keys() == {"pieces", "alone", "kernels", "missing", "not_shared"}
    assert (found["kernels"] is None) == (found["missing"] is not None)
    shown = output("inspect", flow.folder)
    assert ("in one pass" in shown) == (found["pieces"] > 0)
    assert ("of one operator on elements" in shown) == (found["alone"] > 0)


def test_texts_and_vectors_say_where_they_come_from(output: Any, tmp_path: Path) -> None:
    write_files(
        tmp_path,
        sentence_bert_config={"max_seq_length": 9},
        config_sentence_transformers={"prompts": {"q": "Ask: "}, "default_prompt_name": "q"},
    )
    pack = compile_encoder(tmp_path)
    lines = {" ".join(line.split()) for line in output("inspect", pack).splitlines()}
    assert {
        "texts up to 9 tokens of 64, 'Ask: ' before each (sentence_bert_config.json)",
        "tokenizer takes 3.0 MiB (tokenizer.json)",
        "vectors 8 numbers, mean of last_hidden_state, of length 1 (modules.json)",
    } <= lines
    document = json.loads(output("inspect", pack, "--json"))
    assert document["text"]["max_tokens"] == 9
    assert document["embedding"]["pooling"] == "mean"
    (planned,) = json.loads(output("plan", pack, "--budget", "64MiB", "--json"))["packs"]
    assert planned["tokenizer_bytes"] == TOKENIZER_BYTES
    assert "tokenizer" in output("plan", pack, "--budget", "64MiB")


def test_sounds_say_where_their_recipe_comes_from(output: Any, tmp_path: Path) -> None:
    pack = compile_listener(tmp_path)
    line = "sounds 1 s at 16,000 Hz, log-mel spectrogram of 8 bins, 50 frames"
    text = " ".join(output("inspect", pack).split())
    assert f"{line} (preprocessor_config.json)" in text
    document = json.loads(output("inspect", pack, "--json"))
    assert document["sound"]["bins"] == 8
    assert document["origins"]["sound"] == "preprocessor_config.json"
