"""Whole networks in C, on many inputs, under sanitizers and a limit of the stack."""

from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from PIL import Image

from models import default
from models.compiler import CompileOptions, compile_onnx
from models.compiler.for_c import GraphForC, graph_for_c
from models.images.preprocess import Preprocess
from models.packs.pack import open_pack
from models.runtime.sessions import open_session, session_options
from models.zoo import build
from pipeline.export_c.export import Exported, ExportOptions, export_c, write_export
from tests.models.streamed import streamed
from tests.pipeline.export_c.compiled import FLAGS, needs_compiler
from tests.pipeline.export_c.program import answers_of, program, stack_bytes, static_bytes

pytestmark = [needs_compiler, pytest.mark.slow]
SANITIZERS = ("-g", "-fsanitize=address,undefined", "-fno-sanitize-recover=all")
DEFAULT = "the default model"
PATCHNET = {"patchnet": {"budget": 64 << 10, "classes": 10}}
_STACK = 64 << 10
_HUNDRED = 100


def zoo_graph(folder: Path, name: str, resolution: int = 224, integers: bool = False) -> GraphForC:
    """Return a network of the zoo, or the one that comes with us, as floats or as integers."""
    source = default.FOLDER / "cifar10.onnx"
    if name != DEFAULT:
        source = folder / "source.onnx"
        build(name, source, resolution=resolution, options=PATCHNET.get(name, {}))
    recipe = Preprocess(size=(resolution, resolution), mean=(128.0,), std=(64.0,))
    options = CompileOptions(preprocess=recipe, calibrate=partial(pictures, resolution))
    work = folder / "work"
    work.mkdir()
    return graph_for_c(source, work, options if integers else CompileOptions())


def pictures(resolution: int) -> Iterator[Image.Image]:
    generator = np.random.default_rng(0)
    for _ in range(4):
        yield Image.fromarray(generator.integers(0, 256, (resolution, resolution, 3), np.uint8))


def exported_to(folder: Path, graph: GraphForC, **options: Any) -> Exported:
    exported = export_c(graph, ExportOptions(prefix="net", **options))
    write_export(exported, folder / "c")
    return exported


def drawn(exported: Exported, count: int) -> NDArray[np.float32]:
    shape = exported.api.network.inputs[0].shape
    return np.random.default_rng(7).standard_normal((count, *shape), dtype=np.float32)


def differences(graph: GraphForC, inputs: NDArray[np.float32], got: NDArray[np.float32]) -> float:
    """Return the largest difference to ONNX Runtime, relative to the largest value of its output."""
    session = open_session(str(graph.written()), session_options(optimise=True))
    name = session.get_inputs()[0].name
    wanted = (session.run(None, {name: each})[0] for each in inputs)
    return max(
        float(np.abs(one - other).max() / np.abs(other).max())
        for one, other in zip(got, wanted, strict=True)
    )


def written_bytes(exported: Exported, folder: Path) -> int:
    """Return what the network takes of memory: sections that are written, and the deepest stack."""
    stack = stack_bytes(exported, folder)
    sections = static_bytes(folder)
    return sections[".bss"] + sections[".data"] + stack


@pytest.mark.parametrize("weights", ["const", "callback"])
def test_the_default_model(weights: str, tmp_path: Path) -> None:
    """A hundred inputs; static memory is arena and buffer, the stack at most 2 KiB."""
    graph = zoo_graph(tmp_path, DEFAULT)
    exported = exported_to(tmp_path, graph, weights=weights)
    folder = tmp_path / "c"
    path = program(exported, folder, *FLAGS, "-O2")
    inputs = drawn(exported, _HUNDRED)
    assert differences(graph, inputs, answers_of(exported, path, inputs, _STACK)) <= 1e-5
    assert stack_bytes(exported, folder) <= 2048
    sections = static_bytes(folder)
    assert sections[".bss"] == pytest.approx(
        exported.memory.arena_bytes + exported.buffer_bytes, abs=64
    )
    assert sections[".data"] == 0
    assert sections[".rodata"] >= (exported.weight_bytes if weights == "const" else 0)


@pytest.mark.parametrize("integers", [False, True])
@pytest.mark.parametrize(
    ("name", "resolution", "most"),
    [
        ("patchnet", 224, {False: 254_000, True: 64 << 10}),
        ("mobilenetv2", 224, {False: 5_600_000 // 3, True: 512 << 10}),
        (DEFAULT, 32, {False: 1 << 20, True: 1 << 20}),
    ],
)
def test_a_hundred_images(
    name: str, resolution: int, most: Mapping[bool, int], integers: bool, tmp_path: Path
) -> None:
    """Rows and weights by callback; all that is written, weights on their way and the stack included."""
    graph = zoo_graph(tmp_path, name, resolution, integers)
    exported = exported_to(
        tmp_path, graph, weights="callback", inputs="callback", buffer_bytes=16 << 10
    )
    folder = tmp_path / "c"
    path = program(exported, folder, *FLAGS, "-O2")
    inputs = drawn(exported, _HUNDRED)
    got = answers_of(exported, path, inputs, _STACK)
    assert differences(graph, inputs, got) <= (0 if integers else 1e-5)
    assert written_bytes(exported, folder) <= most[integers]
    if integers:
        image = {exported.api.network.inputs[0].name: inputs[0]}
        options = graph.source.options
        assert isinstance(options, CompileOptions)
        pack = open_pack(compile_onnx(graph.source.path, tmp_path / "pack", options))
        (engine,) = streamed(pack, image).values()
        np.testing.assert_array_equal(got[0], engine)


@pytest.mark.parametrize(
    ("name", "resolution", "integers"),
    [
        *((name, 64, False) for name in ("mobilenetv2", "squeezenet1.1", "efficientnet-b0")),
        *((name, 64, False) for name in ("resnet18", "mobilenetv3-large", "densenet121")),
        *(("googlenet", 64, False), (DEFAULT, 32, False), ("patchnet", 224, False)),
        *((name, 64, False) for name in ("mobilenetv1", "convnext-tiny", "vit-s16")),
        *((name, 64, True) for name in ("mobilenetv2", "squeezenet1.1", "inceptionv2")),
        *((name, 64, True) for name in ("mobilenetv1", "mobilenetv3-large", "efficientnet-b0")),
        *((DEFAULT, 32, True), ("patchnet", 224, True)),
    ],
)
@pytest.mark.parametrize("inputs_by", ["memory", "callback"])
def test_networks_under_sanitizers(
    name: str, resolution: int, integers: bool, inputs_by: str, tmp_path: Path
) -> None:
    graph = zoo_graph(tmp_path, name, resolution, integers)
    exported = exported_to(tmp_path, graph, weights="callback", inputs=inputs_by)
    inputs = drawn(exported, 2)
    path = program(exported, tmp_path / "c", *FLAGS, *SANITIZERS)
    got = answers_of(exported, path, inputs)
    assert differences(graph, inputs, got) <= (0 if integers else 1e-5)
