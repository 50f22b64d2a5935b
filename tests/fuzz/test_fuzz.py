"""A bounded run of each fuzzer; ``python -m tests.fuzz.cfg --minutes 10`` runs one longer."""

import random
from pathlib import Path

import pytest
from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st

from tests.fuzz import cfg as cfg_fuzzer
from tests.fuzz import fleet as fleet_fuzzer
from tests.fuzz import grpc_infer as grpc_infer_fuzzer
from tests.fuzz import http_answers as answers_fuzzer
from tests.fuzz import http_infer as http_infer_fuzzer
from tests.fuzz import http_requests as requests_fuzzer
from tests.fuzz import infer as infer_fuzzer
from tests.fuzz import model_config as config_fuzzer
from tests.fuzz import network as network_fuzzer
from tests.fuzz import onnx as onnx_fuzzer
from tests.fuzz import pack as pack_fuzzer
from tests.fuzz import pictures as pictures_fuzzer
from tests.fuzz import proxy_protocol as proxy_protocol_fuzzer
from tests.fuzz import sdf3 as sdf3_fuzzer
from tests.fuzz import sounds as sounds_fuzzer
from tests.fuzz import texts as texts_fuzzer
from tests.fuzz import wire as wire_fuzzer

EXAMPLES = 30


def test_pack_reader(tmp_path: Path) -> None:
    sound = pack_fuzzer.sound_packs(tmp_path / "sound")
    fuzzer = pack_fuzzer.PackFuzzer(sound, tmp_path / "damaged")
    accepted = [fuzzer.run(seed) for seed in range(EXAMPLES)]
    assert 0 < sum(accepted) < EXAMPLES  # damage is subtle enough to pass, and not always


def test_onnx_reader(tmp_path: Path) -> None:
    fuzzer = onnx_fuzzer.OnnxFuzzer(tmp_path)
    accepted = [fuzzer.run(seed) for seed in range(EXAMPLES)]
    assert 0 < sum(accepted) < EXAMPLES


def test_cfg_reader(tmp_path: Path) -> None:
    fuzzer = cfg_fuzzer.CfgFuzzer(tmp_path)
    accepted = [fuzzer.run(seed) for seed in range(EXAMPLES)]
    assert 0 < sum(accepted) < EXAMPLES


def test_sdf3_reader(tmp_path: Path) -> None:
    fuzzer = sdf3_fuzzer.Sdf3Fuzzer(tmp_path)
    accepted = [fuzzer.run(seed) for seed in range(EXAMPLES)]
    assert 0 < sum(accepted) < EXAMPLES


def test_readers_of_pieces() -> None:
    accepted = [wire_fuzzer.run(seed) for seed in range(EXAMPLES)]
    assert 0 < sum(accepted) < EXAMPLES


def test_infer_reader() -> None:
    accepted = [infer_fuzzer.run(seed) for seed in range(EXAMPLES)]
    assert 0 < sum(accepted) < EXAMPLES


def test_model_config_reader() -> None:
    accepted = [config_fuzzer.run(seed) for seed in range(EXAMPLES)]
    assert 0 < sum(accepted) < EXAMPLES


def test_requests_on_the_wire() -> None:
    accepted = [requests_fuzzer.run(seed) for seed in range(EXAMPLES)]
    assert 0 < sum(accepted) < EXAMPLES


def test_answers_on_the_wire() -> None:
    accepted = [answers_fuzzer.run(seed) for seed in range(EXAMPLES)]
    assert 0 < sum(accepted) < EXAMPLES


def test_texts_and_files_of_tokenizers() -> None:
    accepted = [texts_fuzzer.run(seed) for seed in range(EXAMPLES)]
    assert 0 < sum(accepted) < EXAMPLES


def test_sounds_and_their_configurations() -> None:
    accepted = [sounds_fuzzer.run(seed) for seed in range(EXAMPLES)]
    assert 0 < sum(accepted) < EXAMPLES


def test_headers_of_proxies() -> None:
    accepted = [proxy_protocol_fuzzer.run(seed) for seed in range(EXAMPLES)]
    assert 0 < sum(accepted) < EXAMPLES


def test_pictures() -> None:
    accepted = [pictures_fuzzer.run(file_seed) for file_seed in (1, 3, 6, 8, 9)]
    assert 0 < sum(accepted) < len(accepted)


@pytest.mark.slow
@pytest.mark.parametrize("batch", range(1, 9))
def test_four_hundred_pictures(batch: int) -> None:
    accepted = [pictures_fuzzer.run(50 * batch + file_seed) for file_seed in range(50)]
    assert 0 < sum(accepted) < len(accepted)


def test_infer_over_http(tmp_path: Path) -> None:
    with http_infer_fuzzer.HttpInferFuzzer(tmp_path) as fuzzer:
        accepted = [fuzzer.run(seed) for seed in range(EXAMPLES // 3)]
    assert 0 < sum(accepted) < EXAMPLES // 3


def test_infer_over_grpc(tmp_path: Path) -> None:
    with grpc_infer_fuzzer.GrpcInferFuzzer(tmp_path) as fuzzer:
        accepted = [fuzzer.run(seed) for seed in range(EXAMPLES // 3)]
    assert 0 < sum(accepted) < EXAMPLES // 3


# Drawn and not shrunk: a smaller graph is another graph, and each takes a compilation.
_PHASES = (Phase.explicit, Phase.reuse, Phase.generate)


def _compare(examples: int, folder: Path, first: int) -> None:
    folder.mkdir()
    answered: list[bool] = []

    @seed(first)
    @given(rng=st.randoms(use_true_random=True))
    @settings(
        max_examples=examples,
        phases=_PHASES,
        deadline=None,
        database=None,
        suppress_health_check=list(HealthCheck),
    )
    def compare(rng: random.Random) -> None:
        answered.append(network_fuzzer.attempt(rng, folder))

    compare()
    assert examples // 3 < sum(answered) < examples  # most answer, some are refused by both


def test_graphs_answer_as_in_onnx_runtime(tmp_path: Path) -> None:
    _compare(9, tmp_path / "drawn", 0)


@pytest.mark.slow
@pytest.mark.parametrize("part", range(1, 21))
def test_two_thousand_graphs_answer_as_in_onnx_runtime(part: int, tmp_path: Path) -> None:
    _compare(100, tmp_path / "drawn", part)


@pytest.mark.parametrize(
    "main",
    [
        pack_fuzzer.main,
        onnx_fuzzer.main,
        cfg_fuzzer.main,
        infer_fuzzer.main,
        config_fuzzer.main,
        fleet_fuzzer.main,
        http_infer_fuzzer.main,
        grpc_infer_fuzzer.main,
        sdf3_fuzzer.main,
        wire_fuzzer.main,
        network_fuzzer.main,
    ],
)
def test_command_reports(main: pack_fuzzer.Main, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["0.01", "7"]) == 0
    assert "no fault found" in capsys.readouterr().out


def test_first_example_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    assert pack_fuzzer.chosen_run(["--minutes", "2"])[0] == 120
    assert pack_fuzzer.chosen_run(["3", "11"]) == (3, 11)
    assert "first example: 11" in capsys.readouterr().out


def test_fault_names_its_example(capsys: pytest.CaptureFixture[str]) -> None:
    def faulty(seed: int) -> bool:
        if seed == 5:
            raise TypeError("a fault")
        return True

    with pytest.raises(TypeError, match="a fault"):
        pack_fuzzer.run_examples(faulty, 60, 3)
    assert "example 5 failed" in capsys.readouterr().err
