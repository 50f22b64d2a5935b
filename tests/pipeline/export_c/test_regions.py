"""Rows of an image as they come, bottlenecks some channels at a time: the same answers in less memory."""

import functools
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from hypothesis import given
from hypothesis import strategies as st
from onnx import TensorProto, helper
from PIL import Image

from models.compiler.for_c import GraphForC
from models.images.preprocess import Preprocess
from models.zoo.patchnet import patchnet
from pipeline.export_c.export import ExportOptions, export_c
from pipeline.export_c.network.network import ExportError
from tests.examples import examples
from tests.models.nets import answers, filled, inputs_for, parsed
from tests.pipeline.export_c.byte_graphs import MICROSOFT, Graph, same_bits
from tests.pipeline.export_c.compiled import Compiled, agree, for_c, needs_compiler

SIDE = 16
IMAGE = {"image": (1, 3, SIDE, SIDE)}
INPUT_FAILED, PATCHES = 4, 2


def _pictures() -> Iterator[Image.Image]:
    generator = np.random.default_rng(0)
    for _ in range(2):
        yield Image.fromarray(generator.integers(0, 256, (SIDE, SIDE, 3)).astype(np.uint8))


Tunnels = Callable[[int, bool], GraphForC]


@pytest.fixture(scope="module")
def tunnels(tmp_path_factory: pytest.TempPathFactory) -> Tunnels:
    """Graphs by expansion, of floats or of integers, each made once."""
    return functools.cache(
        lambda expansion, integers: _tunnels(
            tmp_path_factory.mktemp("tunnels"), expansion, integers
        )
    )


def _tunnels(folder: Path, expansion: int, integers: bool) -> GraphForC:
    """Two patches, one tunnel of bottlenecks for each."""
    sizes: dict[str, Any] = {
        "budget": 4096,
        "margin": 4,
        "classes": 5,
        "patches": PATCHES,
        "central": False,
    }
    model = filled(patchnet(SIDE, **sizes, expansion=expansion), seed=1)
    recipe = Preprocess(size=(SIDE, SIDE), mean=(128.0,), std=(64.0,))
    chosen: dict[str, Any] = {"preprocess": recipe, "calibrate": _pictures} if integers else {}
    return for_c(model, folder, **chosen)


def _same(compiled: Compiled, graph: GraphForC, integers: bool) -> None:
    """Check the answers: bit for bit in integers."""
    inputs = inputs_for(IMAGE)
    status, outputs = compiled.run(inputs)
    assert status == 0
    expected = answers(graph.written(), inputs, optimise=True)
    agree(outputs, expected, 0 if integers else 1e-5)


@needs_compiler
@pytest.mark.parametrize("integers", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_the_expansion_takes_no_memory(integers: bool, tunnels: Tunnels, tmp_path: Path) -> None:
    kernel = "bottleneck_of_bytes" if integers else "bottleneck"
    arenas = set()
    for expansion in (2, 4):
        graph = tunnels(expansion, integers)
        folder = tmp_path / str(expansion)
        compiled = Compiled.of(
            graph, folder, weights="callback", inputs="callback", buffer_bytes=2000
        )
        _same(compiled, graph, integers)
        steps = compiled.exported.memory.steps
        by_rows = [step for step in steps if step.bands is not None and step.bands.source]
        assert len(by_rows) == PATCHES
        assert kernel in {step.kernel for step in steps}
        arenas.add(compiled.exported.memory.arena_bytes)
    assert len(arenas) == 1


@needs_compiler
@pytest.mark.parametrize("integers", [False, True])
def test_more_memory_is_less_work(integers: bool, tunnels: Tunnels, tmp_path: Path) -> None:
    graph = tunnels(2, integers)
    least = export_c(graph, ExportOptions()).memory.arena_bytes
    rows = []
    for extra in (0, 500, 1 << 20):
        memory = export_c(graph, ExportOptions(arena_bytes=least + extra)).memory
        assert memory.arena_bytes <= least + extra
        rows.append([step.bands.rows for step in memory.steps if step.bands is not None])
    assert all(few <= many for few, many in zip(rows[0], rows[2], strict=True))
    assert rows[0] < rows[2]
    with pytest.raises(ExportError, match=f"the smallest that works {least}$"):
        export_c(graph, ExportOptions(arena_bytes=least - 1))
    compiled = Compiled.of(graph, tmp_path / "c", ports="arena", arena_bytes=1 << 20)
    _same(compiled, graph, integers)


@needs_compiler
def test_rows_that_cannot_be_brought(tunnels: Tunnels, tmp_path: Path) -> None:
    graph = tunnels(2, True)
    compiled = Compiled.of(graph, tmp_path / "c", inputs="callback")
    compiled.fails = True
    assert compiled.run(inputs_for(IMAGE))[0] == INPUT_FAILED
    assert len(compiled.rows) == 1
    compiled.fails = False
    assert compiled.run(inputs_for(IMAGE))[0] == 0
    assert set(compiled.rows) == set(range(SIDE))


@needs_compiler
def test_bytes_in_and_out(tunnels: Tunnels, tmp_path: Path) -> None:
    """The same answers as of floats, once the caller has made bytes of them and the other way round."""
    graph = tunnels(2, True)
    image = inputs_for(IMAGE)["image"]
    floats = Compiled.of(graph, tmp_path / "c")
    _, expected = floats.run({"image": image})
    (name,) = expected
    for inputs_by in ("memory", "callback"):
        folder = tmp_path / inputs_by
        compiled = Compiled.of(graph, folder, inputs=inputs_by, byte_ports=True)
        network = compiled.exported.api.network
        first, last = network.quantised["image"], network.quantised[name]
        limits = np.iinfo(first.dtype)
        numbers = np.rint(image / np.float32(first.one)) + first.plain_zero
        given_ = np.clip(numbers, limits.min, limits.max).astype(first.dtype)
        status, outputs = compiled.run({"image": given_})
        assert status == 0
        scaled = (outputs[name].astype(np.int32) - last.plain_zero).astype(np.float32)
        np.testing.assert_array_equal(scaled * np.float32(last.one), expected[name])
        if inputs_by == "memory":
            assert compiled.exported.memory.arena_bytes <= floats.exported.memory.arena_bytes
        header = (folder / "source.h").read_text()
        assert f"#define SOURCE_IMAGE_ZERO {first.plain_zero}\n" in header


def test_floats_have_no_bytes(tiny_graph: GraphForC) -> None:
    with pytest.raises(ExportError, match="no input is quantised first"):
        export_c(tiny_graph, ExportOptions(byte_ports=True))


def test_an_input_that_is_needed_whole(tmp_path: Path) -> None:
    model = parsed(
        "g (float[1,3,8,8] x) => (float[1,4,8,8] y, float[1,3,8,8] z) { y = Conv(x, w)\n z = Relu(x) }",
        {"w": (4, 3, 1, 1)},
    )
    model.graph.node[1].name = "whole"
    with pytest.raises(ExportError, match=r"'whole' reads all of input 'x'"):
        export_c(for_c(model, tmp_path), ExportOptions(inputs="callback"))


Shape = tuple[int, ...]
Drawn = tuple[onnx.ModelProto, Shape, bool]


@st.composite
def windows(draw: st.DrawFn) -> tuple[Shape, dict[str, Any]]:
    """A kernel, and the attributes of a convolution by it."""
    kernel = draw(st.integers(1, 3)), draw(st.integers(1, 3))
    return kernel, {
        "pads": [draw(st.integers(0, size - 1)) for size in (*kernel, *kernel)],
        "strides": [draw(st.integers(1, 2)) for _ in range(2)],
        "dilations": [draw(st.integers(1, 2)) for _ in range(2)],
    }


@st.composite
def bottlenecks(draw: st.DrawFn) -> Drawn:
    """A convolution of any geometry, one of each channel, and one of a pixel, of floats or of integers."""
    size, inner, filters = (
        draw(st.integers(14, 16)),
        draw(st.integers(17, 21)),
        draw(st.integers(1, 18)),
    )
    (wide, first), (thin, own) = draw(windows()), draw(windows())
    layers = [
        ((inner, 2, *wide), first),
        ((inner, 1, *thin), {**own, "group": inner}),
        ((filters, inner, 1, 1), {}),
    ]
    shape, integers = (1, 2, size, size + 1), draw(st.booleans())
    g = Graph("uint8", draw(st.integers(0, 99)))
    if integers:
        source = g.quantized()
        for name, (kernel, attributes) in zip("aby", layers, strict=True):
            source = g.convolution(source, name, kernel, **attributes)
        return g.model(shape, ["y"]), shape, True
    source = "x"
    for name, (kernel, attributes) in zip("aby", layers, strict=True):
        weight = g.constant(g.generator.standard_normal(kernel).astype(np.float32))
        source = g.add("Conv", name, source, weight, **attributes)
        source = g.add("Relu", f"{name}r", source)
    port, result = helper.make_tensor_value_info, helper.make_empty_tensor_value_info("yr")
    result.type.tensor_type.elem_type = TensorProto.FLOAT
    given_ = [port("x", TensorProto.FLOAT, shape)]
    graph = helper.make_graph(g.nodes, "g", given_, [result], g.tensors)
    opsets = [helper.make_opsetid("", 17)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=9), shape, False


@needs_compiler
def test_a_bottleneck_ends_where_the_next_one_would_begin(tmp_path: Path) -> None:
    """Of MobileNetV1's layers each is the last of one and the first of the next: it is part of one only."""
    model = parsed(
        """v1 (float[1,3,16,16] x) => (float y) {
            a = Conv<strides=[2,2], pads=[1,1,1,1]>(x, stem)
            b = Conv<group=32, pads=[1,1,1,1]>(a, own)
            c = Conv(b, wide)
            d = Conv<group=32, pads=[1,1,1,1], strides=[2,2]>(c, other)
            y = Conv(d, last)
        }""",
        {
            "stem": (32, 3, 3, 3),
            "own": (32, 1, 3, 3),
            "wide": (32, 32, 1, 1),
            "other": (32, 1, 3, 3),
            "last": (32, 32, 1, 1),
        },
    )
    compiled = Compiled.of(for_c(model, tmp_path), tmp_path / "c")
    given_ = inputs_for({"x": (1, 3, 16, 16)})
    agree(compiled.run(given_)[1], answers(tmp_path / "source.onnx", given_))
    kernels = [step.kernel for step in compiled.exported.memory.steps]
    assert kernels == ["bottleneck", "convolve", "convolve"]


@needs_compiler
@pytest.mark.parametrize("arena_bytes", [None, 1 << 20])
def test_pixels_in_another_shape_end_no_bottleneck(arena_bytes: int | None, tmp_path: Path) -> None:
    """A product of a matrix with a row for each pixel has one row of them, whatever the image was."""
    g, shape = Graph("uint8", 3), (1, 3, 8, 8)
    source = g.convolution(g.quantized(), "a", (24, 3, 1, 1))
    g.convolution(source, "b", (24, 1, 3, 3), group=24, pads=[1, 1, 1, 1])
    g.add("Transpose", "t", "b", perm=[0, 2, 3, 1])
    g.add("Reshape", "r", "t", g.constant(np.array([64, 24])))
    given_ = (*g.scales["b"], *g.weights((24, 5), 5), g.bias(5), *g.scaled("y", 0.5))
    g.add("QGemm", "y", "r", *given_, domain=MICROSOFT)
    same_bits(for_c(g.model(shape, ["y"]), tmp_path), tmp_path, shape, arena_bytes=arena_bytes)


def test_as_many_channels_of_bytes_lie_beside_each_other_as_there_are_up_to_eight(
    tmp_path: Path,
) -> None:
    """Fewer take less of the arena, more take no more."""
    arenas, shape = [], (1, 3, 16, 16)
    for inner in (4, 8, 24):
        g = Graph("uint8", 3)
        source = g.convolution(g.quantized(), "a", (inner, 3, 1, 1))
        g.convolution(source, "b", (inner, 1, 3, 3), group=inner, pads=[1, 1, 1, 1])
        g.convolution("b", "y", (3, inner, 1, 1))
        folder = tmp_path / str(inner)
        folder.mkdir()
        graph = for_c(g.model(shape, ["y"]), folder)
        memory = export_c(graph, ExportOptions()).memory
        assert "bottleneck_of_bytes" in {step.kernel for step in memory.steps}
        arenas.append(memory.arena_bytes)
    four, eight, more = arenas
    assert four < eight == more


@needs_compiler
@examples(2, many=60)
@given(bottlenecks(), st.sampled_from(["memory", "callback"]))
def test_bottlenecks_of_any_geometry(
    tmp_path_factory: pytest.TempPathFactory,
    drawn: Drawn,
    inputs: str,
) -> None:
    model, shape, integers = drawn
    folder = tmp_path_factory.mktemp("c")
    graph = for_c(model, folder)
    compiled = Compiled.of(graph, folder / "c", inputs=inputs)
    given_ = {"x": 2 * inputs_for({"x": shape})["x"]}
    status, outputs = compiled.run(given_)
    assert status == 0
    expected = answers(graph.written(), given_, optimise=True)
    agree(outputs, expected, 0 if integers else 1e-5)
