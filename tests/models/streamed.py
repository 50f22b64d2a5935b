"""Run a pack as the service would, with the smallest ring, and compare with what was expected."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from loader.pool.pool import ReadPool
from loader.readers.fakes import MemoryReader
from models.compiler import CompileOptions, compile_onnx
from models.packs.pack import Pack, open_pack
from pipeline.devices.base import Device
from pipeline.devices.cpu import CpuDevice
from pipeline.execution.engine import Engine
from pipeline.planning.smallest import smallest_plan
from pipeline.program.prepare import prepare
from pipeline.schedule.architectures import ARCHITECTURES

Arrays = Mapping[str, NDArray[Any]]


def compiled(source: Path, folder: Path, options: CompileOptions | None = None) -> Pack:
    return open_pack(compile_onnx(source, folder / "pack" / source.stem, options))


def streamed(
    pack: Pack, inputs: Arrays, architecture: str = "2s", times: int = 1
) -> dict[str, NDArray[Any]]:
    """Return what the last of ``times`` sweeps gives."""
    chosen = ARCHITECTURES[architecture]
    pool = ReadPool()
    device: Device = CpuDevice()
    program = prepare(pack, device)
    plan = smallest_plan(program, chosen)
    reader = MemoryReader(pack.weights_path.read_bytes())
    engine = Engine(program, plan, device, pool, reader, verify=True)
    try:
        engine.open()
        for _ in range(times - 1):
            engine.run(inputs)
        outputs, _ = engine.run(inputs)
    finally:
        engine.close()
        device.close()
        pool.close()
    return outputs


def same(got: Arrays, expected: Arrays, rtol: float = 0.0, atol: float = 0.0) -> None:
    """Check names, dtypes, shapes and values; strings and integers must be equal."""
    assert list(got) == list(expected)
    for name, array in expected.items():
        assert got[name].shape == array.shape, name
        if array.dtype.kind not in "OUS":
            assert got[name].dtype == array.dtype, name
        if array.dtype.kind == "f":
            np.testing.assert_allclose(got[name], array, rtol, atol, err_msg=name)
        else:
            np.testing.assert_array_equal(got[name], array, err_msg=name)
