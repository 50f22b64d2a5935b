"""Every network of the zoo on the CUDA device, beside ONNX Runtime. Slow on the host's kernels."""

from pathlib import Path

import numpy as np
import onnxruntime as ort
import pytest

from models import zoo
from models.compiler import CompileOptions, compile_onnx
from models.packs.pack import open_pack
from pipeline.devices.find import device_measure
from pipeline.measuring.sweeps import random_inputs
from pipeline.planning.make import make_plan
from pipeline.program.program import Program
from pipeline.schedule.architectures import ARCHITECTURES
from tests.pipeline.devices.cuda.driving import ON_GPU, driver_of
from tests.pipeline.devices.cuda.space import Kernels
from tests.pipeline.devices.cuda.test_cuda_networks import device_on, engine_of

pytestmark = pytest.mark.gpu if ON_GPU else pytest.mark.slow


@pytest.mark.parametrize("name", sorted(zoo.ENTRIES))
def test_networks_of_the_zoo_are_as_onnxruntime(
    kernels: Kernels, name: str, tmp_path: Path
) -> None:
    source = tmp_path / f"{name}.onnx"
    zoo.build(name, source, zoo.ENTRIES[name].calibration_resolution)
    with device_on(driver_of(kernels)) as device:
        options = CompileOptions(target=device.target, measure=device_measure(device.target))
        pack = open_pack(compile_onnx(source, tmp_path / "packs" / name, options), device.target)
        inputs = random_inputs(pack.manifest)
        expected = ort.InferenceSession(source, providers=["CPUExecutionProvider"]).run(
            None, inputs
        )
        answers = []
        for architecture in ("pre", "async"):
            plan = make_plan(Program.as_compiled(pack), ARCHITECTURES[architecture])
            with engine_of(pack, plan, device) as (engine, _):
                answers.append(list(engine.run(inputs)[0].values()))
    for one, other, wanted in zip(*answers, expected, strict=True):
        assert np.array_equal(one, other)
        assert np.abs(one - wanted).max() <= 1e-4 * np.abs(wanted).max()
