"""Whole networks in C, on several inputs, under sanitizers and a limit of the stack."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from models import default
from models.compiler import compile_onnx
from models.packs.pack import open_pack
from models.runtime.sessions import open_session, session_options
from models.zoo import build
from pipeline.export_c.export import Exported, Options, export_c, write_export
from tests.pipeline.export_c.compiled import FLAGS, needs_compiler
from tests.pipeline.export_c.program import answers_of, program, stack_bytes, static_bytes

pytestmark = [needs_compiler, pytest.mark.slow]
SANITIZERS = ("-g", "-fsanitize=address,undefined", "-fno-sanitize-recover=all")
_STACK = 64 << 10


def exported_to(folder: Path, source: Path, **options: Any) -> Exported:
    pack = open_pack(compile_onnx(source, folder / "pack"))
    exported = export_c(pack, Options(prefix="net", **options))
    write_export(exported, folder / "c")
    return exported


def drawn(exported: Exported, count: int) -> NDArray[np.float32]:
    shape = exported.api.network.inputs[0].shape
    return np.random.default_rng(7).standard_normal((count, *shape), dtype=np.float32)


def differences(source: Path, inputs: NDArray[np.float32], got: NDArray[np.float32]) -> float:
    """Return the largest difference to ONNX Runtime, relative to the largest value of its output."""
    session = open_session(str(source), session_options(optimise=True))
    name = session.get_inputs()[0].name
    wanted = [session.run(None, {name: each})[0] for each in inputs]
    return max(
        float(np.abs(one - other).max() / np.abs(other).max())
        for one, other in zip(got, wanted, strict=True)
    )


@pytest.mark.parametrize("weights", ["const", "callback"])
def test_the_default_model(weights: str, tmp_path: Path) -> None:
    """A hundred inputs; static memory is arena and buffer, the stack at most 2 KiB."""
    source = default.FOLDER / "cifar10.onnx"
    exported = exported_to(tmp_path, source, weights=weights)
    folder = tmp_path / "c"
    path = program(exported, folder, *FLAGS, "-O2")
    inputs = drawn(exported, 100)
    assert differences(source, inputs, answers_of(exported, path, inputs, _STACK)) <= 1e-5
    assert stack_bytes(exported, folder) <= 2048
    sections = static_bytes(folder)
    assert sections[".bss"] == pytest.approx(
        exported.memory.arena_bytes + exported.buffer_bytes, abs=64
    )
    assert sections[".data"] == 0
    assert sections[".rodata"] >= (exported.weight_bytes if weights == "const" else 0)


@pytest.mark.parametrize(
    ("name", "resolution"),
    [
        *(("mobilenetv2", 64), ("squeezenet1.1", 64), ("efficientnet-b0", 64), ("resnet18", 64)),
        *(("mobilenetv3-large", 64), ("densenet121", 64), ("googlenet", 64)),
    ],
)
def test_the_zoo_under_sanitizers(name: str, resolution: int, tmp_path: Path) -> None:
    source = tmp_path / "source.onnx"
    build(name, source, resolution=resolution)
    exported = exported_to(tmp_path, source, weights="callback")
    inputs = drawn(exported, 2)
    path = program(exported, tmp_path / "c", *FLAGS, *SANITIZERS)
    assert differences(source, inputs, answers_of(exported, path, inputs)) <= 1e-5
