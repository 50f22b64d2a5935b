"""The benchmark's pure parts, and the peers in their processes."""

import hashlib
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from models.packs.pack import Pack
from models.packs.records.ports import SourceFile
from pipeline.benchmark.configuration import BenchConfiguration, plan_configuration
from pipeline.benchmark.contenders import Contender, SourceError, find_source, model_of, take_turns
from pipeline.benchmark.run import equal, relative_error
from pipeline.energy import NoMeter
from pipeline.measuring.sweeps import random_inputs
from pipeline.peers import ONNXRUNTIME, OPENVINO, PEERS
from pipeline.peers.peer import PeerError, PeerProcess, peer_command
from pipeline.planning.plan import PlanError
from pipeline.schedule.architectures import ARCHITECTURES
from tests.examples import over
from tests.pipeline.synthetic import PAGE, program

_numbers = st.lists(st.floats(-100, 100, width=32), min_size=1, max_size=8)


class Counted(Contender):
    """Notes when it is asked for what."""

    memory: Mapping[str, int] = {}

    def __init__(self, name: str, log: list[str]) -> None:
        self.name = name
        self._log = log

    def run(self) -> tuple[float, float]:
        self._log.append(self.name)
        return float(len(self._log)), 0.0

    def settle(self) -> float:
        assert self._log[-1] == self.name
        self._log.append("settled")
        return 1.0

    def outputs(self) -> Mapping[str, NDArray[np.float32]]:
        return {"count": np.array([len(self._log)], np.float32)}


def test_everybody_settles_before_the_next_turn_and_goes_first_in_turn() -> None:
    log: list[str] = []
    done: list[int] = []
    contenders = [Counted(name, log) for name in "abc"]
    samples = take_turns(contenders, 4, NoMeter("a test"), done.append)
    assert log[1::2] == ["settled"] * (3 * 6)
    rounds = ["".join(log[start : start + 6 : 2]) for start in range(0, len(log), 6)]
    assert [sorted(each) for each in rounds] == [list("abc")] * 6
    assert {each[0] for each in rounds} == set("abc")
    assert done[-4:] == [1, 2, 3, 4]
    for each in samples:
        assert len(each.delays) == len(each.cpu) == len(each.energies) == 4
        assert each.outputs["count"] <= 6  # of the first run


@given(_numbers, st.floats(0, 0.5))
def test_the_error_is_relative_to_the_largest_value(values: list[float], share: float) -> None:
    expected = {"y": np.array(values, np.float64)}
    scale = float(np.abs(expected["y"]).max()) or 1.0
    other = expected["y"].copy()
    other[0] += share * scale
    assert relative_error({"y": other}, expected) == pytest.approx(share, abs=1e-12)
    assert relative_error(expected, expected) == 0
    assert relative_error({"y": other[:, None]}, expected) is None
    assert relative_error({}, expected) is None


@given(_numbers, st.integers(0, 7))
def test_equal_means_every_bit(values: list[float], position: int) -> None:
    one = np.array(values, np.float32)
    other = one.copy()
    assert equal({"y": one}, {"y": other})
    other.view(np.uint32)[position % len(other)] ^= 1
    assert not equal({"y": one}, {"y": other})
    assert not equal({"y": one.astype(np.float64)}, {"y": one})
    assert not equal({"y": one, "z": one}, {"y": one})


@over("name", ["2s-md", "async-md", "auto"])
def test_tuned_architectures_need_a_profile(name: str) -> None:
    with pytest.raises(PlanError, match="profile"):
        plan_configuration(
            program([1, 2, 3], [True] * 3), BenchConfiguration(name, ARCHITECTURES[name])
        )


@given(st.integers(1, 40))
def test_a_limit_is_kept_or_refused(pages: int) -> None:
    network = program([4, 1, 3, 2, 4], [True] * 5, resident_pages=2)
    configuration = BenchConfiguration("2s", ARCHITECTURES["2s"], pages * PAGE)
    if pages < 6:
        with pytest.raises(PlanError, match=str(pages * PAGE)):
            plan_configuration(network, configuration)
    else:
        planned = plan_configuration(network, configuration)
        assert planned.plan.weight_bytes <= pages * PAGE


def _renamed(pack: Pack, folder: Path, content: bytes) -> Pack:
    """Return ``pack`` in ``folder``/models/NAME/1, compiled from a file of ``content``."""
    digest = hashlib.sha256(content).hexdigest()
    source = SourceFile(file="source-of-this-test.onnx", n_bytes=len(content), sha256=digest)
    place = folder / "models" / pack.name / "1"
    place.mkdir(parents=True)
    return Pack(place, replace(pack.manifest, source=source), pack.graphs)


def test_the_source_is_found_by_its_bytes(tiny_pack: Pack, tmp_path: Path) -> None:
    pack = _renamed(tiny_pack, tmp_path, b"the network")
    assert find_source(pack) is None
    beside = tmp_path / pack.manifest.source.file
    beside.write_bytes(b"the netwerk")
    assert find_source(pack) is None
    with pytest.raises(SourceError, match="not what"):
        find_source(pack, beside)
    beside.write_bytes(b"the network")
    assert find_source(pack) == beside
    assert find_source(pack, beside) == beside
    with pytest.raises(SourceError, match="No such file"):
        find_source(pack, tmp_path / "none.onnx")


def test_without_a_source_only_onnxruntime_can_run_the_pack(tiny_pack: Pack) -> None:
    model, note = model_of(tiny_pack, None, ONNXRUNTIME)
    assert model == tiny_pack.model_path
    assert ONNXRUNTIME in note
    model, note = model_of(tiny_pack, None, OPENVINO)
    assert model is None
    assert OPENVINO in note


@pytest.mark.parametrize("name", PEERS)
def test_a_peer_answers(name: str, tiny_pack: Pack, tiny_onnx: Path, tmp_path: Path) -> None:
    if name == OPENVINO:
        pytest.importorskip("openvino")
    inputs = random_inputs(tiny_pack.manifest)
    names = [port.name for port in tiny_pack.manifest.outputs]
    peer = PeerProcess(name, peer_command(name, tiny_onnx, inputs, 1, tmp_path), tmp_path)
    try:
        assert peer.run() > 0
        assert peer.settle() > 0
        first = peer.outputs(names)
        peer.run()
        assert equal(peer.outputs(names), first)
        assert [array.shape for array in first.values()] == [
            port.shape for port in tiny_pack.manifest.outputs
        ]
    finally:
        peer.close()


def test_a_peer_that_refuses_says_why(tmp_path: Path) -> None:
    file = tmp_path / "none.onnx"
    file.write_bytes(b"no network")
    with pytest.raises(PeerError, match=ONNXRUNTIME) as raised:
        PeerProcess(ONNXRUNTIME, peer_command(ONNXRUNTIME, file, {}, 1, tmp_path), tmp_path)
    assert "\n" not in str(raised.value)
