"""Rows of an image as they come, bottlenecks some channels at a time: the same answers in less memory."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from models.images.preprocess import Preprocess
from models.initial import filled
from models.packs.pack import Pack
from models.zoo.patchnet import patchnet
from pipeline.export_c.errors import ExportError
from pipeline.export_c.export import Options, export_c
from tests.models.nets import answers, inputs_for, parsed
from tests.pipeline.export_c.compiled import Compiled, agree, needs_compiler, packed
from tests.pipeline.export_c.test_quantised import Graph

IMAGE = {"image": (1, 3, 32, 32)}
INPUT_FAILED = 4


def _pictures() -> Iterator[Image.Image]:
    generator = np.random.default_rng(0)
    for _ in range(2):
        yield Image.fromarray(generator.integers(0, 256, (32, 32, 3)).astype(np.uint8))


def _tunnels(folder: Path, expansion: int, integers: bool) -> Pack:
    """Two patches, one tunnel of bottlenecks for each."""
    sizes: dict[str, Any] = {
        "budget": 4096,
        "margin": 4,
        "classes": 5,
        "patches": 2,
        "central": False,
    }
    model = filled(patchnet(32, **sizes, expansion=expansion), seed=1)
    recipe = Preprocess(size=(32, 32), mean=(128.0,), std=(64.0,))
    chosen: dict[str, Any] = {"preprocess": recipe, "calibrate": _pictures} if integers else {}
    return packed(model, folder, **chosen)


def _same(compiled: Compiled, pack: Pack, integers: bool) -> None:
    """Check the answers: bit for bit in integers."""
    inputs = inputs_for(IMAGE)
    status, outputs = compiled.run(inputs)
    assert status == 0
    expected = answers(pack.model_path, inputs, optimise=True)
    agree(outputs, expected, 0 if integers else 1e-5)


@needs_compiler
@pytest.mark.parametrize("integers", [False, True])
def test_the_expansion_takes_no_memory(integers: bool, tmp_path: Path) -> None:
    kernel = "bottleneck_of_bytes" if integers else "bottleneck"
    arenas = set()
    for expansion in (2, 8):
        folder = tmp_path / str(expansion)
        folder.mkdir()
        pack = _tunnels(folder, expansion, integers)
        compiled = Compiled.of(
            pack, folder / "c", weights="callback", inputs="callback", buffer_bytes=2000
        )
        _same(compiled, pack, integers)
        steps = compiled.exported.memory.steps
        assert {"copy", "quantize", "convolve_bytes"}.isdisjoint(
            step.kernel for step in steps if step.kernel != "convolve_bytes" or step.bands is None
        )
        assert kernel in {step.kernel for step in steps}
        arenas.add(compiled.exported.memory.arena_bytes)
    assert len(arenas) == 1


@needs_compiler
@pytest.mark.parametrize("integers", [False, True])
def test_more_memory_is_less_work(integers: bool, tmp_path: Path) -> None:
    pack = _tunnels(tmp_path, 4, integers)
    least = export_c(pack, Options()).memory.arena_bytes
    rows = []
    for extra in (0, 500, 1 << 20):
        memory = export_c(pack, Options(arena_bytes=least + extra)).memory
        assert memory.arena_bytes <= least + extra
        rows.append([step.bands.rows for step in memory.steps if step.bands is not None])
    assert all(few <= many for few, many in zip(rows[0], rows[2], strict=True))
    assert rows[0] < rows[2]
    with pytest.raises(ExportError, match=f"at least {least} bytes"):
        export_c(pack, Options(arena_bytes=least - 1))
    compiled = Compiled.of(pack, tmp_path / "c", ports="arena", arena_bytes=1 << 20)
    _same(compiled, pack, integers)


@needs_compiler
def test_rows_that_cannot_be_brought(tmp_path: Path) -> None:
    pack = _tunnels(tmp_path, 2, integers=True)
    compiled = Compiled.of(pack, tmp_path / "c", inputs="callback")
    compiled.fails = True
    assert compiled.run(inputs_for(IMAGE))[0] == INPUT_FAILED
    assert len(compiled.rows) == 1
    compiled.fails = False
    assert compiled.run(inputs_for(IMAGE))[0] == 0
    assert set(compiled.rows) == set(range(32))


def test_an_input_that_is_needed_whole(tmp_path: Path) -> None:
    model = parsed(
        "g (float[1,3,8,8] x) => (float[1,4,8,8] y, float[1,3,8,8] z) { y = Conv(x, w)\n z = Relu(x) }",
        {"w": (4, 3, 1, 1)},
    )
    model.graph.node[1].name = "whole"
    with pytest.raises(ExportError, match=r"'whole' reads all of input 'x'"):
        export_c(packed(model, tmp_path), Options(inputs="callback"))


@st.composite
def bottlenecks(draw: st.DrawFn) -> tuple[onnx.ModelProto, tuple[int, ...], bool]:
    """A crop, a first convolution of any geometry, one of each channel, and one of a pixel."""
    integers, size = draw(st.booleans()), draw(st.integers(14, 16))
    shape, inner, filters = (
        (1, 2, size, size + 1),
        draw(st.integers(17, 21)),
        draw(st.integers(1, 18)),
    )
    windows = []
    for _ in range(2):
        kernel = [draw(st.integers(1, 3)) for _ in range(2)]
        windows.append(
            {
                "pads": [draw(st.integers(0, n - 1)) for n in (*kernel, *kernel)],
                "strides": [draw(st.integers(1, 2)) for _ in range(2)],
                "dilations": [draw(st.integers(1, 2)) for _ in range(2)],
                "kernel": kernel,
            }
        )
    (first, own), seed = windows, draw(st.integers(0, 99))
    kernels = (inner, 2, *first.pop("kernel")), (inner, 1, *own.pop("kernel"))
    g = Graph("uint8", seed)
    if integers:
        wide = g.convolution(g.quantized(), "a", kernels[0], **first)
        thin = g.convolution(wide, "b", kernels[1], group=inner, **own)
        g.convolution(thin, "y", (filters, inner, 1, 1))
        return g.model(shape, ["y"]), shape, True
    made = []
    for (source, result), kernel, window in zip(
        (("x", "a"), ("ra", "b"), ("rb", "y")),
        (*kernels, (filters, inner, 1, 1)),
        (first, {**own, "group": inner}, {}),
        strict=True,
    ):
        weight = g.constant(g.generator.standard_normal(kernel).astype(np.float32))
        g.add("Conv", result, source, weight, **window)
        made.append(result)
        if result != "y":
            g.add("Relu", f"r{result}", result)
    port = onnx.helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, shape)
    result = onnx.helper.make_empty_tensor_value_info("y")
    result.type.tensor_type.elem_type = onnx.TensorProto.FLOAT
    graph = onnx.helper.make_graph(g.nodes, "g", [port], [result], g.tensors)
    opsets = [onnx.helper.make_opsetid("", 17)]
    return onnx.helper.make_model(graph, opset_imports=opsets, ir_version=9), shape, False


@needs_compiler
@settings(max_examples=4)
@given(bottlenecks(), st.sampled_from(["memory", "callback"]))
def test_bottlenecks_of_any_geometry(
    tmp_path_factory: pytest.TempPathFactory,
    drawn: tuple[onnx.ModelProto, tuple[int, ...], bool],
    inputs: str,
) -> None:
    model, shape, integers = drawn
    folder = tmp_path_factory.mktemp("c")
    pack = packed(model, folder)
    compiled = Compiled.of(pack, folder / "c", inputs=inputs)
    given_ = {"x": 2 * inputs_for({"x": shape})["x"]}
    status, outputs = compiled.run(given_)
    assert status == 0
    expected = answers(pack.model_path, given_, optimise=True)
    agree(outputs, expected, 0 if integers else 1e-5)
