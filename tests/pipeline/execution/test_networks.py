"""Whole networks of the zoo: ``2s`` equals ``pre`` bit for bit in every ring, and ONNX Runtime to 1e-5."""

from pathlib import Path

import numpy as np
import onnxruntime as ort
import pytest

from loader.pool.pool import ReadPool
from loader.readers.files import open_reader
from models import zoo
from models.compiler import compile_onnx
from models.packs.pack import open_pack
from pipeline.devices.cpu import CpuDevice
from pipeline.execution.engine import Engine
from pipeline.planning.make import make_plan
from pipeline.program.program import Program
from pipeline.schedule.architectures import ARCHITECTURES


@pytest.mark.slow
@pytest.mark.disk
@pytest.mark.parametrize("name", ["resnet50", "resnet152", "vgg19"])
def test_streamed_networks_equal_preloaded_ones(name: str, tmp_path: Path) -> None:
    source = tmp_path / f"{name}.onnx"
    zoo.build(name, source)
    pack = open_pack(compile_onnx(source, tmp_path / name))
    image = np.random.default_rng(1).standard_normal((1, 3, 224, 224), np.float32)
    device, pool = CpuDevice(), ReadPool()

    def answer(
        architecture: str, ring: int | None
    ) -> np.ndarray[tuple[int, ...], np.dtype[np.float32]]:
        plan = make_plan(Program.as_compiled(pack), ARCHITECTURES[architecture], ring)
        engine = Engine(
            Program.as_compiled(pack), plan, device, pool, open_reader(pack.weights_path)
        )
        try:
            engine.open()
            return engine.run({"image": image})[0]["logits"]
        finally:
            engine.close()

    try:
        expected = answer("pre", None)
        layer = pack.manifest.largest_layer_bytes
        for ring in (pack.manifest.largest_chunk_bytes, layer // 2, layer, 3 * layer):
            assert np.array_equal(answer("2s", ring), expected), ring
    finally:
        pool.close()
    for model in (source, pack.model_path):
        session = ort.InferenceSession(model, providers=["CPUExecutionProvider"])
        plain = session.run(None, {"image": image})[0]
        assert np.abs(plain - expected).max() <= 1e-5
