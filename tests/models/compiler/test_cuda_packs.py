"""Packs for GPUs, run on the CPU: what one kernel computes is one piece, and answers are the source's."""

import functools
import itertools
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest
from hypothesis import given
from hypothesis import strategies as st
from onnx import numpy_helper

from models.compiler import CompileOptions, compile_onnx
from models.compiler.cutting.scratch import LAUNCHES_BYTES, PROGRAM_BYTES, runs_on_cpu
from models.packs.pack import Pack, open_pack
from models.packs.records.pieces import Layer, Operand
from models.packs.target import cuda_target
from models.zoo import build
from pipeline.program.choice import choose_pieces, chunk_sizes
from pipeline.program.program import Program
from tests.examples import examples
from tests.models.chosen import WholeMemory
from tests.models.nets import NETS, answers, inputs_for, parsed, written
from tests.models.streamed import Arrays, same, streamed

TARGET = cuda_target(72)
CHUNK = 12 << 10
# A channel, an activation, a residual: pieces cut them like rows of the weight.
C = 64


def compiled(model: onnx.ModelProto | Path, folder: Path, chunk_bytes: int | None = CHUNK) -> Pack:
    source = model if isinstance(model, Path) else written(model, folder / "net.onnx")
    options = CompileOptions(chunk_bytes=chunk_bytes, target=TARGET, force=True)
    return open_pack(compile_onnx(source, folder / "repository" / "net", options), TARGET)


def in_pieces(pack: Pack, inputs: Arrays, chunk_bytes: int | None) -> Arrays:
    """Run the pieces for ``chunk_bytes``, every value in memory of its own."""
    memory = WholeMemory(pack)
    memory.run(choose_pieces(Program.as_compiled(pack), chunk_bytes), inputs)
    outputs = {
        port.name: memory.array(
            Operand(kind="value", index=port.value, dtype=port.dtype, shape=port.shape)
        ).copy()
        for port in pack.manifest.outputs
    }
    memory.close()
    return outputs


def assert_computes_the_same(pack: Pack, source: Path) -> None:
    """Assert that the whole model, all chunks and all ways to run them give what ``source`` gives."""
    inputs = inputs_for({port.name: port.shape for port in pack.manifest.inputs})
    expected = answers(source, inputs)
    largest = max(float(np.abs(array).max()) for array in expected.values())
    atol = 1e-5 * max(largest, 1.0)
    same(answers(pack.model_path, inputs), expected, atol=atol)
    for limit in (0, *chunk_sizes(Program.as_compiled(pack))):
        same(in_pieces(pack, inputs, limit), expected, atol=atol)
    # The second sweep starts on what the first one left in the arena.
    for architecture in ("pre", "2s", "2s-md"):
        same(streamed(pack, inputs, architecture, times=2), expected, atol=atol)


def operators(pack: Pack) -> list[str]:
    return [layer.operator for layer in pack.manifest.layers]


def layer(pack: Pack, operator: str) -> Layer:
    (found,) = [item for item in pack.manifest.layers if item.operator == operator]
    return found


def residual_of(pack: Pack, operator: str) -> str | None:
    """Return the value whose memory the result of the layer ``operator`` lies in."""
    found = layer(pack, operator)
    values = pack.manifest.values
    parents = {
        values[piece.outputs[0].index].parent
        for piece in pack.manifest.pieces[found.first_piece : found.end_piece]
    }
    (parent,) = parents
    return None if parent is None else values[parent].name


WEIGHTS = {"w": (C, C, 3, 3), "v": (C, C, 1, 1), "u": (C, 2 * C, 1, 1), "b": (C,)}


def net(nodes: str, outputs: str = "y") -> onnx.ModelProto:
    """Return a model of ``nodes`` on tensors of one shape; "conv(a, w)" is a 3 x 3 convolution."""
    shape = f"float[1,{C},5,5]"
    ports = ", ".join(f"{shape} {name}" for name in outputs.split())
    text = nodes.replace("conv(", "Conv<pads=[1,1,1,1]>(")
    return parsed(f"net ({shape} x) => ({ports}) {{ {text} }}", WEIGHTS)


@pytest.mark.parametrize("name", NETS)
def test_networks_compute_the_same(name: str, tmp_path: Path) -> None:
    source = written(NETS[name](), tmp_path / "net.onnx")
    pack = compiled(source, tmp_path)
    inputs = inputs_for({port.name: port.shape for port in pack.manifest.inputs})
    expected = answers(source, inputs)
    for architecture in ("pre", "2s"):
        same(streamed(pack, inputs, architecture), expected, atol=2e-5)


@pytest.mark.parametrize(
    ("nodes", "expected"),
    [
        ("c = conv(x, w, b)\n y = Relu(c)", ["Conv+Relu"]),
        ("c = conv(x, w)\n s = Sigmoid(c)\n y = Mul(c, s)", ["Conv+Sigmoid+Mul"]),
        (
            "c = conv(x, w)\n p = Softplus(c)\n t = Tanh(p)\n y = Mul(t, c)",
            ["Conv+Softplus+Tanh+Mul"],
        ),
        (
            "r = Abs(x)\n c = conv(r, w)\n d = Relu(c)\n e = Conv(d, v)\n s = Add(e, r)\n y = Relu(s)",
            ["Abs", "Conv+Relu", "Conv+Add+Relu"],
        ),
        (
            "r = Abs(x)\n c = conv(r, w)\n d = Relu(c)\n e = Conv(d, v)\n f = Elu(e)\n y = Add(f, r)",
            ["Abs", "Conv+Relu", "Conv+Elu+Add"],
        ),
        (
            "c = conv(x, w)\n d = Conv(x, v)\n s = Add(c, d)\n y = Relu(s)",
            ["Conv", "Conv+Add+Relu"],
        ),
        # The later of two convolutions takes their sum, whatever the order in which they are given.
        (
            "c = conv(x, w)\n d = Conv(x, v)\n r = Relu(c)\n y = Add(r, d)",
            ["Conv", "Conv+Relu+Add"],
        ),
        # What is added is convolved, too.
        ("c = conv(x, w)\n y = Add(c, x)", ["Conv", "Add"]),
        # Two read what the convolution makes.
        (
            "c = conv(x, w)\n r = Relu(c)\n t = Tanh(c)\n y = Add(r, t)",
            ["Conv", "Relu", "Tanh", "Add"],
        ),
        ("s = Sigmoid(x)\n y = Mul(x, s)", ["Sigmoid+Mul"]),
        (
            """c = conv(x, w)
            root = Constant<value_float=1.41421356>()
            one = Constant<value_float=1.0>()
            half = Constant<value_float=0.5>()
            d = Div(c, root)
            e = Erf(d)
            f = Add(e, one)
            g = Mul(c, f)
            y = Mul(g, half)""",
            ["Conv+Div+Erf+Add+Mul+Mul"],
        ),
        (
            """a = Constant<value_float=1.5>()
            m = Mul(x, a)
            s = Sigmoid(m)
            y = Mul(x, s)""",
            ["Mul+Sigmoid+Mul"],
        ),
        (
            """c = conv(x, w)
            three = Constant<value_float=3.0>()
            low = Constant<value_float=0.0>()
            six = Constant<value_float=6.0>()
            a = Add(c, three)
            k = Clip(a, low, six)
            d = Mul(c, k)
            y = Div(d, six)""",
            ["Conv+Add+Clip+Mul+Div"],
        ),
    ],
)
def test_what_one_kernel_computes_is_one_layer(
    nodes: str, expected: list[str], tmp_path: Path
) -> None:
    pack = compiled(net(nodes), tmp_path)
    assert sorted(operators(pack)) == sorted(expected)
    for item in pack.manifest.layers:
        assert (item.end_piece - item.first_piece > 1) == (item.weight_bytes > CHUNK)
    assert_computes_the_same(pack, tmp_path / "net.onnx")


def test_outputs_of_the_model_are_not_inside_a_piece(tmp_path: Path) -> None:
    nodes = "c = conv(x, w)\n d = Relu(c)\n e = Conv(d, v)\n s = Add(e, d)\n y = Relu(s)"
    pack = compiled(net(nodes, "c y"), tmp_path)
    assert operators(pack) == ["Conv", "Relu", "Conv", "Add+Relu"]
    assert_computes_the_same(pack, tmp_path / "net.onnx")


BLOCK = "r = Abs(x)\n c = conv(r, w)\n d = Relu(c)\n e = conv(d, w)\n s = Add(e, r)\n y = Relu(s)"


def test_a_sum_is_written_over_what_it_adds(tmp_path: Path) -> None:
    assert residual_of(compiled(net(BLOCK), tmp_path), "Conv+Add+Relu") == "r"


@pytest.mark.parametrize(
    ("nodes", "outputs"),
    [
        (f"{BLOCK}\n z = Mul(y, r)", "y z"),
        (BLOCK, "r y"),
        (BLOCK.replace("conv(r, w)", "conv(x, w)"), "y r"),
    ],
    ids=["read-afterwards", "an-output", "an-output-last"],
)
def test_what_is_still_needed_is_not_written_over(nodes: str, outputs: str, tmp_path: Path) -> None:
    pack = compiled(net(nodes, outputs), tmp_path)
    assert residual_of(pack, "Conv+Add+Relu") is None
    assert_computes_the_same(pack, tmp_path / "net.onnx")


def test_what_is_convolved_is_not_written_over(tmp_path: Path) -> None:
    """It lies in the same tensor: the first chunk would change what the second one reads."""
    nodes = """r = Abs(x)
        q = Tanh(x)
        k = Concat<axis=1>(r, q)
        c = Conv(k, u)
        s = Add(c, r)
        y = Relu(s)"""
    pack = compiled(net(nodes), tmp_path)
    assert residual_of(pack, "Conv+Add+Relu") is None
    assert_computes_the_same(pack, tmp_path / "net.onnx")


def test_a_batch_stays_whole(tmp_path: Path) -> None:
    model = parsed(
        f"""net (float[2,{C},5,5] x) => (float[2,{C},5,5] y) {{
            r = Abs(x)
            c = Conv<pads=[1,1,1,1]>(x, w, b)
            s = Add(c, r)
            y = Relu(s)
        }}""",
        WEIGHTS,
    )
    pack = compiled(model, tmp_path)
    assert operators(pack) == ["Abs", "Conv+Add+Relu"]
    assert len(pack.manifest.pieces) == 2
    assert_computes_the_same(pack, tmp_path / "net.onnx")


def test_what_cannot_be_streamed_keeps_together(tmp_path: Path) -> None:
    nodes = """c = conv(x, w, b)
        n = NonZero(c)
        r = Relu(c)
        f = Cast<to=1>(n)
        e = Conv(r, v)
        m = ReduceMax<keepdims=0>(f)
        t = Tanh(e)
        s = Mul(t, m)
        y = Elu(s)"""
    pack = compiled(net(nodes), tmp_path)
    assert [piece.operators for piece in pack.manifest.resident_pieces] == [
        ("NonZero", "Cast", "ReduceMax")
    ]
    # What the resident piece reads, too, is not inside another one.
    assert {"Conv", "Relu", "Conv+Tanh", "Mul+Elu"} <= set(operators(pack))
    assert_computes_the_same(pack, tmp_path / "net.onnx")


def test_fully_connected_layers_are_cut_with_their_activation(tmp_path: Path) -> None:
    model = parsed(
        """net (float[1,256] x) => (float[1,64] y) {
            a = Gemm<transB=1>(x, w, b)
            r = Relu(a)
            y = Gemm<transB=1>(r, u)
        }""",
        {"w": (128, 256), "b": (128,), "u": (64, 128)},
    )
    pack = compiled(model, tmp_path)
    assert operators(pack) == ["Gemm+Relu", "Gemm"]
    assert len(pack.manifest.pieces) > 4
    assert_computes_the_same(pack, tmp_path / "net.onnx")


@given(st.integers(16 << 10, 200 << 10), st.sampled_from([16, 24, 64, 128]))
@examples(5, many=100)
def test_chunks_are_tiles_of_32_channels_where_that_fits(
    tmp_path_factory: pytest.TempPathFactory, chunk_bytes: int, channels: int
) -> None:
    nodes = f"net (float[1,{channels},3,3] x) => (float[1,256,3,3] y) {{ c = Conv(x, w)\n y = Relu(c) }}"
    model = parsed(nodes, {"w": (256, channels, 1, 1)})
    pack = compiled(model, tmp_path_factory.mktemp("net"), chunk_bytes)
    weights = [piece.inputs[1].shape[0] for piece in pack.manifest.pieces]
    assert sum(weights) == 256
    aligned = max(4096 // (4 * channels & -(4 * channels)), 4)
    fits = 32 * 4 * channels <= chunk_bytes
    for rows in weights[:-1]:
        assert rows % (max(32, aligned) if fits else aligned) == 0
    if len(weights) > 1:
        assert all(rows * 4 * channels <= max(chunk_bytes, 32 * 4 * channels) for rows in weights)


def channels_written(piece: bytes) -> int:
    """Measure a piece: a KiB for each of its output channels."""
    shape = onnx.load_from_string(piece).graph.output[0].type.tensor_type.shape
    return shape.dim[1].dim_value << 10


def test_scratch_is_what_the_device_says(tmp_path: Path) -> None:
    source = written(net("c = conv(x, w, b)\n y = Relu(c)"), tmp_path / "net.onnx")
    measured: list[bytes] = []

    def measure(piece: bytes, on_rows: bool) -> int:
        if on_rows:
            return 0
        measured.append(piece)
        return channels_written(piece)

    options = CompileOptions(chunk_bytes=CHUNK, target=TARGET, measure=measure)
    pack = open_pack(compile_onnx(source, tmp_path / "m", options), TARGET)
    assert sorted(measured) == sorted(pack.graphs)  # each of them once
    rows = {piece.inputs[1].shape[0]: piece.scratch_bytes for piece in pack.manifest.pieces}
    for limit in chunk_sizes(Program.as_compiled(pack)):
        joined = choose_pieces(Program.as_compiled(pack), limit)
        rows |= {piece.inputs[1].shape[0]: piece.scratch_bytes for piece in joined}
    assert rows == {count: count << 10 for count in (16, 32, 64)}
    for record, graph in zip(pack.manifest.graphs, pack.graphs, strict=True):
        assert record.session_bytes == PROGRAM_BYTES + 2 * LAUNCHES_BYTES + len(graph)


def test_what_the_device_does_not_run_is_bounded_as_on_the_cpu(tmp_path: Path) -> None:
    source = written(net("c = conv(x, w, b)\n y = Relu(c)"), tmp_path / "net.onnx")
    plain, unknown = (
        open_pack(compile_onnx(source, tmp_path / name / "m", options), TARGET)
        for name, options in (
            ("plain", CompileOptions(chunk_bytes=CHUNK, target=TARGET)),
            ("unknown", CompileOptions(chunk_bytes=CHUNK, target=TARGET, measure=runs_on_cpu)),
        )
    )
    assert plain.manifest == unknown.manifest
    inner = 4 * C * 5 * 5
    assert all(piece.scratch_bytes > inner for piece in plain.manifest.pieces)


ACTIVATIONS: dict[str, Callable[[str, str], str]] = {
    "none": lambda x, y: f"{y} = Identity({x})",
    "relu": lambda x, y: f"{y} = Relu({x})",
    "leaky": lambda x, y: f"{y} = LeakyRelu<alpha=0.1>({x})",
    "silu": lambda x, y: f"{y}_s = Sigmoid({x})\n {y} = Mul({x}, {y}_s)",
    "mish": lambda x, y: f"{y}_p = Softplus({x})\n {y}_t = Tanh({y}_p)\n {y} = Mul({x}, {y}_t)",
    "two readers": lambda x, y: f"{y}_a = Tanh({x})\n {y}_b = Relu({x})\n {y} = Add({y}_a, {y}_b)",
}


@st.composite
def networks(draw: st.DrawFn) -> onnx.ModelProto:
    """Draw convolutions on any tensors before them, with sums before or after activations, in any order.

    Tensors in the middle are read again, and some are outputs.
    """
    tensors, lines = ["x"], []
    for index in range(draw(st.integers(1, 4))):
        source, other = (draw(st.sampled_from(tensors)) for _ in range(2))
        weight = draw(st.sampled_from(["w", "v"]))
        convolution = (
            f"c{index} = "
            + {
                "w": f"conv({source}, w, b)",
                "v": f"Conv({source}, v)",
            }[weight]
        )
        branch = f"d{index} = Conv({other}, v)"
        act = ACTIVATIONS[draw(st.sampled_from(sorted(ACTIVATIONS)))]
        first, last = f"m{index}", f"t{index}"
        shapes = {
            "plain": [convolution, act(f"c{index}", last)],
            "before": [convolution, f"{first} = Add({other}, c{index})", act(first, last)],
            "after": [convolution, act(f"c{index}", first), f"{last} = Add({first}, {other})"],
            "branch": [convolution, branch, f"{first} = Add(c{index}, d{index})", act(first, last)],
            "branch first": [
                branch,
                convolution,
                act(f"c{index}", first),
                f"{last} = Add(d{index}, {first})",
            ],
        }
        lines += shapes[draw(st.sampled_from(sorted(shapes)))]
        tensors.append(last)
    inner = [*tensors[1:-1], *[f"c{index}" for index in range(len(tensors) - 1)]]
    shown = draw(st.lists(st.sampled_from(inner), unique=True, max_size=2))
    model = net("\n ".join(lines), " ".join([*shown, tensors[-1]]))
    # Small enough that sums of sums stay near 1.
    for tensor in model.graph.initializer:
        tensor.CopyFrom(numpy_helper.from_array(numpy_helper.to_array(tensor) / 2, tensor.name))
    return model


@given(networks(), st.sampled_from([1, CHUNK, 40 << 10, 1 << 20]))
@examples(3, many=250)
def test_drawn_networks(
    tmp_path_factory: pytest.TempPathFactory, model: onnx.ModelProto, chunk_bytes: int
) -> None:
    folder = tmp_path_factory.mktemp("drawn")
    pack = compiled(model, folder, chunk_bytes)
    assert_computes_the_same(pack, folder / "net.onnx")


@pytest.fixture(scope="module")
def zoo(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str, int], tuple[Path, Pack]]:
    folder = tmp_path_factory.mktemp("zoo")

    @functools.cache
    def made(name: str, resolution: int) -> tuple[Path, Pack]:
        source = folder / f"{name}.onnx"
        build(name, source, resolution)
        options = CompileOptions(target=TARGET)
        return source, open_pack(compile_onnx(source, folder / "packs" / name, options), TARGET)

    return made


Zoo = Callable[[str, int], tuple[Path, Pack]]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "resolution"),
    [
        ("squeezenet1.1", 64),
        ("resnet18", 32),
        ("yolov4-tiny", 64),
    ],
)
def test_networks_of_the_zoo_compute_the_same(zoo: Zoo, name: str, resolution: int) -> None:
    source, pack = zoo(name, resolution)
    nodes = onnx.load(pack.model_path, load_external_data=False).graph.node
    assert {node.domain for node in nodes} <= {"", "ai.onnx"}
    assert not any(node.op_type == "BatchNormalization" for node in nodes)
    inputs = inputs_for({port.name: port.shape for port in pack.manifest.inputs})
    expected = answers(source, inputs)
    largest = max(np.abs(array).max() for array in expected.values())
    for architecture in ("pre", "2s"):
        got = streamed(pack, inputs, architecture)
        same(got, expected, atol=1e-5 * largest)


@pytest.mark.slow
def test_a_residual_network_is_about_one_piece_a_convolution(zoo: Zoo) -> None:
    _, pack = zoo("resnet18", 32)
    found = operators(pack)
    assert found.count("Conv+Relu") == 9
    assert found.count("Conv+Add+Relu") == 8
    assert found.count("Conv") == 3  # the shortcuts that change the shape
    assert (
        len(choose_pieces(Program.as_compiled(pack), None)) <= 20 + 3
    )  # and the pools and the classifier
    # Every sum is written over what it adds.
    values = pack.manifest.values
    for item in pack.manifest.layers:
        if item.operator == "Conv+Add+Relu":
            (result,) = {
                piece.outputs[0].index
                for piece in pack.manifest.pieces[item.first_piece : item.end_piece]
            }
            assert values[result].parent is not None
    firsts = [item.first_piece for item in pack.manifest.layers]
    assert all(one <= other for one, other in itertools.pairwise(firsts))
