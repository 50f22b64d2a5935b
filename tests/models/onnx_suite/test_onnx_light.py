"""The "light" networks of the onnx package: whole CNNs whose weights are made by nodes.

Each has the answer to one input beside it; the tolerances are those of the package's own runner.
"""

import platform
from pathlib import Path

import numpy as np
import onnx
import onnx.backend.test
import pytest
from onnx import numpy_helper
from onnx.backend.test.case import model as cases
from onnx.backend.test.case.test_case import TestCase
from onnx.backend.test.runner import Runner

from tests.models.streamed import compiled, same, streamed

LIGHT = Path(str(onnx.backend.test.__file__)).parent / "data" / "light"
# Hundreds of megabytes of weights, or of operators: they take longer than the smallest of all.
LARGE = {
    "shufflenet",
    "vgg19",
    "bvlc_alexnet",
    "zfnet512",
    "densenet121",
    "resnet50",
    "inception_v1",
    "inception_v2",
}


#: Its logits are 1e21, whose neighbours are 1e14 apart: sums in another order, as a product in chunks of
#: columns has on Arm, make another class.
ILL = "inception_v1"


def light_cases() -> list[TestCase]:
    return [case for case in cases.collect_testcases() if "/light/" in str(case.url)]


@pytest.mark.parametrize(
    "case",
    [
        pytest.param(
            case,
            id=case.model_name,
            marks=pytest.mark.slow if case.model_name in LARGE else (),
        )
        for case in light_cases()
    ],
)
def test_light_network_streams_to_its_own_answer(case: TestCase, tmp_path: Path) -> None:
    if case.model_name == ILL and platform.machine() == "aarch64":
        pytest.skip("sums of 1e21 in another order on Arm")
    source = LIGHT / f"light_{case.model_name}.onnx"
    model = onnx.load(source)
    weights = {tensor.name for tensor in model.graph.initializer}
    inputs = {
        value.name: Runner.generate_dummy_data(value, name=case.model_name)
        for value in model.graph.input
        if value.name not in weights
    }
    expected = {
        value.name: numpy_helper.to_array(
            onnx.load_tensor(LIGHT / f"light_{case.model_name}_output_{number}.pb")
        )
        for number, value in enumerate(model.graph.output)
    }
    pack = compiled(source, tmp_path)
    assert pack.manifest.resident_pieces == []
    assert pack.manifest.largest_chunk_bytes < pack.manifest.weight_bytes / 4
    same(streamed(pack, inputs), expected, case.rtol, case.atol)


def test_every_light_network_of_the_package_is_here() -> None:
    shipped = {path.stem.removeprefix("light_") for path in LIGHT.glob("*.onnx")}
    assert {case.model_name for case in light_cases()} == shipped
    assert shipped >= LARGE
    assert np.all([(LIGHT / f"light_{name}_output_0.pb").is_file() for name in shipped])
