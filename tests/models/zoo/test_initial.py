"""Random weights: drawn by name, and such that activations on photographs have ordinary sizes."""

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import onnx
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from onnx import numpy_helper

from models.errors import ModelError
from models.graphs.metadata import PREPROCESS, write_metadata
from models.graphs.onnx_writer import declare, declared
from models.initial import initialise, sample_inputs
from models.photographs import photographs
from models.runtime.sessions import open_session, session_options
from models.zoo.builder import IMAGENET, SkeletonBuilder, ZooTensor
from tests.examples import examples, over
from tests.models.nets import filled, parsed
from tests.models.refusal import refuses

SCALE, BIAS = 1, 2


def with_weights(text: str, **shapes: tuple[int, ...]) -> onnx.ModelProto:
    model = parsed(text)
    model.graph.initializer.extend(declare(name, shape) for name, shape in shapes.items())
    return model


@st.composite
def skeletons(draw: st.DrawFn) -> onnx.ModelProto:
    """Draw layers one by one, each on any tensor before it; what nothing read is joined at the end."""
    b = SkeletonBuilder(
        "drawn", draw(st.sampled_from([8, 11, 16])), draw(st.sampled_from([None, IMAGENET]))
    )
    widths = st.sampled_from([4, 8, 20])
    tensors = [b.conv(b.image, draw(widths), 3)]

    def conv(x: ZooTensor, channels: int) -> ZooTensor:
        return b.conv(x, channels, draw(st.sampled_from([1, 3])), bias=draw(st.booleans()))

    for _ in range(draw(st.integers(2, 9))):
        x = draw(st.sampled_from(tensors))
        y = draw(st.sampled_from([tensor for tensor in tensors if tensor.shape == x.shape]))
        layers: dict[str, Callable[[ZooTensor, ZooTensor], ZooTensor]] = {
            "conv": lambda x, _: conv(x, draw(widths)),
            "conv, norm": lambda x, _: b.norm(conv(x, 8)),
            "depthwise": lambda x, _: b.norm(b.conv(x, x.channels, 3, groups=x.channels)),
            "norm": lambda x, _: b.norm(x),
            "relu": lambda x, _: b.relu(x),
            "silu": lambda x, _: b.silu(x),
            "add": b.add,
            "concat": b.concat,
            "pool": lambda x, _: b.max_pool(x, 3, 1, pad=1),
        }
        tensors.append(layers[draw(st.sampled_from(sorted(layers)))](x, y))
    read = {name for node in b._nodes for name in node.input}
    last = b.concat(*(tensor for tensor in tensors if tensor.name not in read))
    return b.model(b.linear(b.flatten(b.global_pool(last)), 9))


def activations(model: onnx.ModelProto) -> dict[str, list[NDArray[Any]]]:
    """Return what every node of ``model`` puts out for each photograph."""
    names = [name for node in model.graph.node for name in node.output]
    del model.graph.output[:]
    model.graph.output.extend(onnx.ValueInfoProto(name=name) for name in names)
    session = open_session(model.SerializeToString(), session_options(optimise=False))
    runs = [session.run(names, sample) for sample in sample_inputs(model, 0)]
    return {name: [run[i] for run in runs] for i, name in enumerate(names)}


def pooled(arrays: list[NDArray[Any]]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Mean and deviation of each channel."""
    together = np.stack(arrays).astype(np.float64)
    axes = tuple(i for i in range(together.ndim) if i != 2)
    return together.mean(axes), together.std(axes)


def test_a_batch_goes_on_with_the_next_photographs_and_after_the_last_with_the_first() -> None:
    def given_to(batch: int) -> list[NDArray[Any]]:
        text = f"g (float[{batch},3,8,8] x) => (float y) {{ y = Relu(x) }}"
        return [np.asarray(sample["x"]) for sample in sample_inputs(parsed(text), 0)]

    single = given_to(1)
    count = len(single)
    assert len({array.tobytes() for array in single}) == count > 1
    for first, batch in enumerate(given_to(count + 1)):
        expected = [single[(first + number) % count] for number in range(count + 1)]
        np.testing.assert_array_equal(batch, np.concatenate(expected))


@given(skeletons(), st.integers(0, 3))
@examples(3, many=200)
def test_norms_give_what_their_scale_and_bias_say(skeleton: onnx.ModelProto, seed: int) -> None:
    weights = initialise(skeleton, seed)
    outputs = activations(filled(skeleton, seed))
    assert all(np.isfinite(array).all() for arrays in outputs.values() for array in arrays)
    for node in skeleton.graph.node:
        if node.op_type != "BatchNormalization":
            continue
        scale, bias = weights[node.input[SCALE]], weights[node.input[BIAS]]
        mean, deviation = pooled(outputs[node.output[0]])
        assert np.all(np.abs(mean - bias) <= scale / 8)
        # Less where the channel hardly varies: that is not blown up.
        assert np.all(deviation <= 1.1 * scale)
        _, raw = pooled(outputs[node.input[0]])
        lively = raw > max(0.1 * math.sqrt(np.mean(np.square(raw))), 0.02)
        assert np.all(deviation[lively] >= 0.9 * scale[lively])


@given(skeletons())
@examples(3, many=150)
def test_other_layers_give_deviations_of_one(skeleton: onnx.ModelProto) -> None:
    outputs = activations(filled(skeleton))
    norms = {n.input[0] for n in skeleton.graph.node if n.op_type == "BatchNormalization"}
    for node in skeleton.graph.node:
        if node.op_type in ("Conv", "Gemm") and not norms & set(node.output):
            together = np.stack(outputs[node.output[0]])
            assert 0.2 < together.std() < 1.3


@given(skeletons(), st.integers(0, 3))
@examples(3, many=100)
def test_weights_are_those_declared_and_depend_on_nothing_but_names_and_seed(
    skeleton: onnx.ModelProto, seed: int
) -> None:
    weights = initialise(skeleton, seed)
    assert {name: array.shape for name, array in weights.items()} == declared(skeleton)
    assert all(array.dtype == np.float32 for array in weights.values())
    reordered = onnx.ModelProto()
    reordered.CopyFrom(skeleton)
    del reordered.graph.initializer[:]
    reordered.graph.initializer.extend(reversed(list(skeleton.graph.initializer)))
    again, other = initialise(reordered, seed), initialise(skeleton, seed + 1)
    for name, array in weights.items():
        assert np.array_equal(array, again[name])
        assert (
            array.size < 4 or not name.endswith("weight") or not np.array_equal(array, other[name])
        )


def test_a_layer_behind_changes_nothing_before_it() -> None:
    def network(layers: int) -> onnx.ModelProto:
        b = SkeletonBuilder("net", 16)
        x = b.image
        for _ in range(layers):
            x = b.relu(b.norm(b.conv(x, 8, 3, bias=True)))
        return b.model(b.global_pool(x))

    short, long = initialise(network(2)), initialise(network(3))
    assert all(np.array_equal(array, long[name]) for name, array in short.items())
    assert len(long) > len(short)


def test_given_arrays_stay_as_they_are_or_say_what_the_mean_is() -> None:
    b = SkeletonBuilder("net", 16)
    x = b.norm(b.conv(b.image, 8, 3))
    model = b.model(b.conv(x, 6, 1, bias=True))
    given = {
        "conv2.bias": np.array([0, -4, 0, 0, -4, 0], np.float32),
        "norm1.var": np.full(8, 2, np.float32),
    }
    weights = initialise(model, biases=given)
    assert np.array_equal(weights["norm1.var"], given["norm1.var"])
    outputs = activations(filled(model, biases=given))["logits"]
    mean, _ = pooled(outputs)
    assert 0.8 < (np.stack(outputs) - given["conv2.bias"].reshape(6, 1, 1)).std() < 1.2
    np.testing.assert_allclose(mean.ravel(), given["conv2.bias"], atol=0.1)
    assert np.any(weights["norm1.mean"] != 0)


def test_a_channel_that_never_varies_is_not_blown_up() -> None:
    b = SkeletonBuilder("net", 16)
    model = b.model(b.norm(b.conv(b.image, 8, 1)))
    weight = np.ones((8, 3, 1, 1), np.float32)
    weight[3] = 0
    outputs = activations(filled(model, biases={"conv1.weight": weight}))
    mean, deviation = pooled(outputs["logits"])
    assert deviation[3] == 0
    assert abs(mean[3]) < 2
    assert np.all(deviation[[0, 1, 2, 4]] > 0.4)


MATRICES: dict[str, tuple[str, dict[str, tuple[int, ...]]]] = {
    "gemm": ("y = Gemm<transB=1>(x, w, b)", {"w": (30, 48), "b": (30,)}),
    "gemm by column": ("y = Gemm(x, w)", {"w": (48, 30)}),
    "matmul": ("y = MatMul(x, w)", {"w": (48, 30)}),
    "matmul and bias": ("z = MatMul(x, w)\n y = Add(z, b)", {"w": (48, 30), "b": (30,)}),
    "weights first": ("t = Transpose(x)\n y = MatMul(w, t)", {"w": (30, 48)}),
}


@over("name", MATRICES)
def test_matrices_are_scaled(name: str) -> None:
    text, shapes = MATRICES[name]
    model = with_weights(f"net (float[1,48] x) => (float[1,30] y) {{ {text} }}", **shapes)
    assert 0.7 < np.stack(activations(filled(model))["y"]).std() < 1.3


def test_transposed_convolutions_slopes_and_factors() -> None:
    text = """net (float[1,3,8,8] x) => (float[1,6,16,16] y) {
        a = ConvTranspose<strides=[2,2]>(x, w, b)
        c = PRelu(a, slope)
        y = Mul(c, factor)
    }"""
    shapes = {"w": (3, 6, 2, 2), "b": (6,), "slope": (6, 1, 1), "factor": (1, 6, 1, 1)}
    model = with_weights(text, **shapes)
    weights = initialise(model)
    assert 0.8 < np.stack(activations(filled(model))["a"]).std() < 1.2
    assert np.all((weights["slope"] > 0.1) & (weights["slope"] < 0.4))
    assert np.all((weights["factor"] > 0.5) & (weights["factor"] < 1.5))


def test_a_weight_of_two_layers_is_scaled_once() -> None:
    text = """net (float[1,3,8,8] x) => (float[1,3,8,8] y) {
        a = Conv(x, w)
        y = Conv(a, w)
    }"""
    model = with_weights(text, w=(3, 3, 1, 1))
    assert 0.8 < np.stack(activations(filled(model))["a"]).std() < 1.2


PORTS = (
    *("float[1,3,8,9]", "float[2,3,8,9]", "float[1,1,8,9]", "float[1,4,8,9]", "float[1,8,9,3]"),
    *("float[1,16,8,9]", "float[7]", "int64[3]", "float"),
)


@over("port", PORTS)
def test_inputs_of_any_kind(port: str) -> None:
    model = with_weights(f"net ({port} x) => (float y) {{ y = Cast<to=1>(x) }}")
    samples = sample_inputs(model, 0)
    assert len(samples) == len(photographs()) >= 3
    session = open_session(model.SerializeToString(), session_options(optimise=False))
    answers = [session.run(None, sample)[0] for sample in samples]
    assert all(np.isfinite(answer).all() for answer in answers)
    if "8" in port:
        assert not np.array_equal(answers[0], answers[1])


@pytest.mark.parametrize("port", ["float[1,3,H,W] x", "float[1,3,0,8] x"])
def test_inputs_without_a_shape_are_refused(port: str) -> None:
    model = with_weights(f"net ({port}) => (float y) {{ y = Conv(x, w) }}", w=(4, 3, 1, 1))
    with refuses(ModelError, "net", "input 'x'"):
        initialise(model)


def test_a_node_that_cannot_run_is_named() -> None:
    model = with_weights("net (float[1,3,8,8] x) => (float y) { y = Conv(x, w) }", w=(4, 5, 1, 1))
    model.graph.node[0].name = "first"
    with refuses(ModelError, "net: node 'first'"):
        initialise(model)


def test_images_follow_the_recipe_of_the_skeleton() -> None:
    model = with_weights("net (float[1,3,8,8] x) => (float y) { y = Relu(x) }")
    plain = sample_inputs(model, 0)[0]["x"]
    assert 0 <= plain.min() < plain.max() <= 1
    recipe = {"size": [8, 8], "resize": "crop", "mean": [255, 255, 255]}
    write_metadata(model, {PREPROCESS: recipe})
    assert np.allclose(sample_inputs(model, 0)[0]["x"], plain * 255 - 255, atol=1e-3)
    write_metadata(model, {PREPROCESS: {**recipe, "size": [9, 8]}})
    assert np.array_equal(sample_inputs(model, 0)[0]["x"], plain)


def test_filled_keeps_what_the_skeleton_holds() -> None:
    model = with_weights("net (float[1,4] x) => (float[1,4] y) { z = Mul(x, w)\n y = Add(z, two) }")
    two = numpy_helper.from_array(np.full(4, 2, np.float32), "two")
    model.graph.initializer.extend([two, declare("w", (4,))])
    held = {t.name: numpy_helper.to_array(t) for t in filled(model).graph.initializer}
    assert held["two"].tolist() == [2] * 4
    assert np.array_equal(held["w"], initialise(model)["w"])
    assert declared(model) == {"w": (4,)}


def test_nothing_declared_is_nothing_drawn() -> None:
    model = with_weights("net (float[1,4] x) => (float[1,4] y) { y = Relu(x) }")
    assert initialise(model) == {}
    assert filled(model) == model
