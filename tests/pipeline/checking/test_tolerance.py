"""The tolerance of the check: right answers are within it, and those of wrong networks are not.

Wrong is a network with one weight, one channel, one scale or one parameter that is another.
"""

import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from models.compiler import CompileOptions, compile_onnx
from models.errors import CompileError
from models.graphs.traits import Traits, read_traits
from models.packs.names import Store
from models.packs.pack import read_pack
from models.packs.target import host_target
from pipeline.checking.check import Reference, check_pack
from pipeline.checking.compare import Arrays, difference
from pipeline.checking.comparison import Tolerance
from pipeline.checking.tolerance import tolerance_of
from pipeline.checking.trials import Trials
from pipeline.devices.cpu import CpuDevice
from tests.examples import over
from tests.models.nets import parsed, written

Model = onnx.ModelProto
_ACTIVATIONS = ("Relu", "LeakyRelu", "Elu", "Sigmoid", "HardSwish", "Tanh", "Clip")


def drawn(seed: int) -> Model:
    """Return convolutions of 3 to 70 channels with norms, activations and shortcuts, and a Gemm."""
    rng, generator = random.Random(seed), np.random.default_rng(seed)
    nodes: list[onnx.NodeProto] = []
    weights: list[TensorProto] = []

    def weight(name: str, array: np.ndarray) -> str:
        weights.append(numpy_helper.from_array(array.astype(np.float32), name))
        return name

    x, channels, size = "x", rng.choice((3, 8, 16)), rng.choice((6, 9))
    image = (1, channels, size, size)
    for layer in range(rng.randint(2, 7)):
        same, kernel = rng.random() < 0.4, rng.choice((1, 3))
        filters = channels if same else rng.randint(3, 70)
        shape = (filters, channels, kernel, kernel)
        matrix = generator.standard_normal(shape) / np.sqrt(channels * kernel**2)
        nodes.append(
            helper.make_node(
                "Conv",
                [x, weight(f"w{layer}", matrix)],
                [f"c{layer}"],
                pads=[kernel // 2] * 4,
            )
        )
        statistics = {
            "scale": generator.uniform(0.8, 1.2, filters),
            "bias": 0.1 * generator.standard_normal(filters),
            "mean": 0.1 * generator.standard_normal(filters),
            "variance": generator.uniform(0.5, 1.5, filters),
        }
        names = [weight(f"{name}{layer}", array) for name, array in statistics.items()]
        nodes.append(helper.make_node("BatchNormalization", [f"c{layer}", *names], [f"n{layer}"]))
        kind = "LeakyRelu" if not layer else rng.choice(_ACTIVATIONS)
        attributes: dict[str, Any] = {"alpha": 0.1} if kind == "LeakyRelu" else {}
        nodes.append(helper.make_node(kind, [f"n{layer}"], [f"a{layer}"], **attributes))
        out = f"a{layer}"
        if same:
            nodes.append(helper.make_node("Add", [out, x], [f"s{layer}"]))
            out = f"s{layer}"
        x, channels = out, filters
    nodes.append(helper.make_node("GlobalAveragePool", [x], ["pooled"]))
    nodes.append(helper.make_node("Flatten", ["pooled"], ["flat"]))
    classes = weight("w", generator.standard_normal((10, channels)) / np.sqrt(channels))
    nodes.append(helper.make_node("Gemm", ["flat", classes], ["y"], transB=1))
    ports = [
        helper.make_tensor_value_info(name, TensorProto.FLOAT, dims)
        for name, dims in (("x", image), ("y", (1, 10)))
    ]
    graph = helper.make_graph(nodes, f"drawn{seed}", ports[:1], ports[1:], weights)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def _changed(model: Model, name: str, change: Callable[[np.ndarray], None]) -> Model:
    """Return ``model`` with another weight ``name``."""
    other = Model()
    other.CopyFrom(model)
    (tensor,) = (tensor for tensor in other.graph.initializer if tensor.name == name)
    array = numpy_helper.to_array(tensor).copy()
    change(array)
    tensor.CopyFrom(numpy_helper.from_array(array, name))
    return other


def wrong(model: Model, seed: int) -> Iterator[tuple[str, Model]]:
    """Yield ``model`` with each fault, and what that is."""
    layers = sum(node.op_type == "Conv" for node in model.graph.node)
    layer = random.Random(seed).randrange(layers)

    def sign(array: np.ndarray) -> None:
        flat = array.reshape(-1)
        index = np.argsort(np.abs(flat))[len(flat) * 3 // 4]
        flat[index] = -flat[index]

    def swapped(array: np.ndarray) -> None:
        array[[0, 1]] = array[[1, 0]]

    def scaled(array: np.ndarray) -> None:
        array[0] *= np.float32(1.01)

    yield "one weight", _changed(model, f"w{layer}", sign)
    yield "swapped channels", _changed(model, f"w{layer}", swapped)
    yield "scale of one channel", _changed(model, f"scale{layer}", scaled)
    other = Model()
    other.CopyFrom(model)
    (alpha,) = (
        attribute
        for node in other.graph.node[:3]
        for attribute in node.attribute
        if attribute.name == "alpha"
    )
    alpha.f *= 1.01
    yield "alpha", other


def _answer(model: Model, file: Path, optimise: bool) -> Arrays:
    dims = [dim.dim_value for dim in model.graph.input[0].type.tensor_type.shape.dim]
    image = np.random.default_rng(0).standard_normal(dims, np.float32)
    return Reference(written(model, file), file).answer({"x": image}, optimise)


def _detected(seed: int, folder: Path) -> list[bool]:
    """Return which faults of a drawn network are seen, by ONNX Runtime alone; optimised it is right."""
    model, file = drawn(seed), folder / "m.onnx"
    expected = _answer(model, file, optimise=False)
    tolerance = tolerance_of(file, read_traits(file), host_target(), "fp32")
    assert not difference(_answer(model, file, optimise=True), expected, tolerance), seed
    others = (_answer(other, folder / "o.onnx", optimise=True) for _, other in wrong(model, seed))
    return [bool(difference(got, expected, tolerance)) for got in others]


def test_right_networks_are_within_it_and_wrong_ones_are_not(tmp_path: Path) -> None:
    for seed in range(3):
        assert all(_detected(seed, tmp_path)), seed


@pytest.mark.slow
def test_many_right_networks_are_within_it_and_wrong_ones_are_not(tmp_path: Path) -> None:
    """Behind several sigmoids a hundredth of one channel is less than what roundings may be."""
    detected = np.array([_detected(seed, tmp_path) for seed in range(100)])
    assert detected[:, :2].all()
    assert (detected.mean(axis=0) >= 0.95).all()


def _refused(model: Model, original: Path, folder: Path) -> bool:
    """Return whether the check refuses the pack of ``model`` beside the file ``original``."""

    def accept(pack: Path, reference: Path) -> None:
        opened = read_pack(pack)
        trials = Trials(opened, CpuDevice(), "quick")
        assert check_pack(opened, Reference(original, original), trials) == []

    options = CompileOptions(accept=accept, force=True)
    try:
        compile_onnx(written(model, folder / "other.onnx"), folder / "r" / "m", options)
    except CompileError as exc:
        return "output 'y' is off by" in str(exc)
    return False


def _refusals(seed: int, folder: Path) -> list[bool]:
    """Return which wrong packs of a drawn network are refused; the right one is not."""
    model = drawn(seed)
    original = written(model, folder / "m.onnx")
    assert not _refused(model, original, folder), seed
    return [_refused(other, original, folder) for _, other in wrong(model, seed)]


def test_a_wrong_pack_is_refused(tmp_path: Path) -> None:
    assert all(_refusals(0, tmp_path))


@pytest.mark.slow
def test_many_wrong_packs_are_refused(tmp_path: Path) -> None:
    """A weight whose channel is cut off for all that was drawn changes nothing."""
    refused = np.array([_refusals(seed, tmp_path) for seed in range(32)])
    assert (refused.mean(axis=0) > 0.95).all()


PLAIN = Traits()


def _of(text: str, folder: Path, **weights: tuple[int, ...]) -> Tolerance:
    return tolerance_of(
        written(parsed(text, weights), folder / "m.onnx"), PLAIN, host_target(), "fp32"
    )


def test_what_only_moves_has_the_same_bits(tmp_path: Path) -> None:
    assert not _of("g (float[2,3] x) => (float y) { y = Transpose(x) }", tmp_path).fraction
    assert 0 < _of("g (float[2,3] x) => (float y) { y = Mul(x, x) }", tmp_path).fraction < 1e-6


@over(
    "node, weights, result",
    [
        ("y = Gemm<transB=1>(x, w)", (8, 400), "[1,8]"),
        ("y = MatMul(x, w)", (400, 8), "[1,8]"),
        ("y = MatMul(x, t)", (), "[1,8]"),
        ("y = ReduceMean<axes=[1]>(x)", (), "[1,1]"),
    ],
)
def test_an_error_grows_with_the_root_of_the_terms(
    node: str, weights: tuple[int, ...], result: str, tmp_path: Path
) -> None:
    def fraction(terms: int) -> float:
        text = f"g (float[1,{terms}] x, float[{terms},8] t) => (float{result} y) {{ {node} }}"
        shape = tuple(terms if length == 400 else length for length in weights)
        return _of(text, tmp_path, **({"w": shape} if shape else {})).fraction

    assert fraction(400) == pytest.approx(2 * fraction(100))


def test_layers_in_series_add_up_and_parallel_ones_do_not(tmp_path: Path) -> None:
    one = "a = MatMul(x, w)"
    series = _of(
        f"g (float[8,64] x) => (float y) {{ {one} y = MatMul(a, w) }}", tmp_path, w=(64, 64)
    )
    parallel = _of(
        f"g (float[8,64] x) => (float y) {{ {one} b = MatMul(x, w) y = Add(a, b) }}",
        tmp_path,
        w=(64, 64),
    )
    single = _of(f"g (float[8,64] x) => (float a) {{ {one} }}", tmp_path, w=(64, 64))
    assert series.fraction == pytest.approx(np.sqrt(2) * single.fraction)
    assert single.fraction < parallel.fraction < 1.01 * single.fraction


def test_numbers_of_fewer_bits_are_less_exact(tmp_path: Path) -> None:
    text = "g (float[1,64] x) => (float[1,8] y) { y = MatMul(x, w) }"
    model = written(parsed(text, {"w": (64, 8)}), tmp_path / "m.onnx")
    stores: tuple[Store, ...] = ("fp32", "fp16", "bf16", "int8")
    fractions = [tolerance_of(model, PLAIN, host_target(), store).fraction for store in stores]
    assert fractions == sorted(fractions)
    assert tolerance_of(model, PLAIN, host_target(), "int8").nudge == fractions[0]
    half = tolerance_of(model, Traits(half=True), host_target(), "fp32")
    assert half.fraction > 100 * half.nudge
