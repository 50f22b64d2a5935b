"""Tensors that stay blocked between convolutions, and chains computed in slices: the same answers."""

from collections import Counter
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from onnx import helper

from models.compiler import CompileOptions
from models.compiler.cutting import chains as chains_module
from models.packs.manifest import Manifest
from models.packs.target import host_target
from models.zoo.builder import SkeletonBuilder, ZooTensor
from tests.examples import examples
from tests.models.nets import filled
from tests.models.streamed import compiled, streamed

needs_blocks = pytest.mark.skipif(host_target().block == 1, reason="no blocked layout here")


def node(b: SkeletonBuilder, kind: str, *inputs: ZooTensor, **attributes: float) -> ZooTensor:
    """Add an operator on elements."""
    return b.add_node(kind, inputs, inputs[0].shape, **attributes)


def mish(b: SkeletonBuilder, x: ZooTensor) -> ZooTensor:
    return b.mul(x, node(b, "Tanh", node(b, "Softplus", x)))


def leaky(b: SkeletonBuilder, x: ZooTensor) -> ZooTensor:
    return node(b, "LeakyRelu", x, alpha=0.1)


def reorders(manifest: Manifest) -> Counter[str]:
    return Counter(layer.operator for layer in manifest.layers if "Reorder" in layer.operator)


def check(model: onnx.ModelProto, folder: Path) -> Manifest:
    """Compare ``pre`` and ``2s`` with each other and with ONNX Runtime; return the manifest."""
    source = folder / "source.onnx"
    onnx.save(model, source)
    pack = compiled(source, folder, CompileOptions(chunk_bytes=4096, force=True))
    (port,) = pack.manifest.inputs
    image = np.random.default_rng(1).standard_normal(port.shape).astype(np.float32)
    session = ort.InferenceSession(source, providers=["CPUExecutionProvider"])
    expected: NDArray[np.float32] = session.run(None, {port.name: image})[0]
    answers = {name: streamed(pack, {port.name: image}, name, times=2) for name in ("pre", "2s")}
    (one,), (other,) = (answer.values() for answer in answers.values())
    assert np.array_equal(one, other)
    assert np.abs(one - expected).max() <= 1e-5 * np.abs(expected).max()
    file = ort.InferenceSession(pack.model_path, providers=["CPUExecutionProvider"])
    assert (
        np.abs(file.run(None, {port.name: image})[0] - expected).max()
        <= 1e-5 * np.abs(expected).max()
    )
    return pack.manifest


def head(b: SkeletonBuilder, x: ZooTensor) -> onnx.ModelProto:
    return filled(b.model(b.linear(b.flatten(b.global_pool(x)), 5)), seed=2)


@needs_blocks
def test_mish_and_a_residual_addition_need_no_reorders(tmp_path: Path) -> None:
    b = SkeletonBuilder("mish", 12)
    x = mish(b, b.norm(b.conv(b.image, 32, 3)))
    y = mish(b, b.norm(b.conv(x, 32, 3)))
    x = mish(b, b.norm(b.conv(b.add(x, y), 48, 1)))
    # The one before the pooling, which ONNX Runtime runs on NCHW.
    assert reorders(check(head(b, x), tmp_path)) == {"ReorderOutput": 1}


@needs_blocks
def test_an_addition_and_its_activation_become_part_of_the_convolution(tmp_path: Path) -> None:
    b = SkeletonBuilder("residual", 12)
    x = leaky(b, b.norm(b.conv(b.image, 32, 3)))
    for _ in range(3):
        y = leaky(b, b.norm(b.conv(x, 16, 1)))
        x = leaky(b, b.add(b.norm(b.conv(y, 32, 3)), x))
    manifest = check(head(b, x), tmp_path)
    assert {layer.operator for layer in manifest.layers}.isdisjoint({"Add", "LeakyRelu"})


def gated(b: SkeletonBuilder, x: ZooTensor, *, gate_first: bool = False) -> ZooTensor:
    """Return ``x`` with its squeeze-excite gate."""
    squeezed = b.relu(b.conv(b.global_pool(x), 16, 1))
    gate = b.sigmoid(b.conv(squeezed, x.channels, 1))
    pair = (gate, x) if gate_first else (x, gate)
    return b.add_node("Mul", pair, x.shape)


@needs_blocks
@pytest.mark.parametrize("gate_first", [False, True])
def test_a_gate_needs_no_reorders(tmp_path: Path, gate_first: bool) -> None:
    b = SkeletonBuilder("gate", 12)
    x = b.relu(b.conv(b.image, 48, 3))
    y = b.relu(b.conv(gated(b, x, gate_first=gate_first), 48, 1))
    x = leaky(b, b.add(gated(b, y), y))
    manifest = check(head(b, x), tmp_path)
    assert {layer.operator for layer in manifest.layers}.isdisjoint({"Mul", "ReorderInput"})


@needs_blocks
@pytest.mark.parametrize("channels", [20, 32])
def test_gates_of_any_channels_give_what_onnxruntime_gives(tmp_path: Path, channels: int) -> None:
    b = SkeletonBuilder("gates", 12)
    x = mish(b, b.conv(b.image, channels, 3))
    model = head(b, b.conv(gated(b, gated(b, x), gate_first=True), 16, 3))
    check(model, tmp_path)


@needs_blocks
def test_channels_that_do_not_divide_are_left_alone(tmp_path: Path) -> None:
    b = SkeletonBuilder("odd", 12)
    x = mish(b, b.conv(b.image, 20, 3))
    y = mish(b, b.conv(b.add(x, mish(b, b.conv(x, 20, 3))), 32, 1))
    check(head(b, y), tmp_path)


@needs_blocks
def test_a_tensor_that_is_also_an_output_is_still_given(tmp_path: Path) -> None:
    b = SkeletonBuilder("two", 12)
    x = mish(b, b.conv(b.image, 32, 3))
    model = filled(b.model(mish(b, b.conv(x, 16, 3))), seed=2)
    model.graph.output.append(helper.make_tensor_value_info(x.name, 1, list(x.shape)))
    source = tmp_path / "two.onnx"
    onnx.save(model, source)
    pack = compiled(source, tmp_path, CompileOptions(chunk_bytes=4096))
    image = np.random.default_rng(1).standard_normal((1, 3, 12, 12)).astype(np.float32)
    session = ort.InferenceSession(source, providers=["CPUExecutionProvider"])
    got = streamed(pack, {"image": image}, times=2)
    for wanted, result in zip(session.run(None, {"image": image}), got.values(), strict=True):
        np.testing.assert_allclose(result, wanted, atol=1e-5 * np.abs(wanted).max())


@st.composite
def networks(draw: st.DrawFn) -> onnx.ModelProto:
    """Draw convolutions, activations, additions and concatenations on any tensors before them."""
    b = SkeletonBuilder("drawn", 8)
    widths = st.sampled_from([16, 20, 32])
    tensors = [b.conv(b.image, draw(widths), 3)]
    for _ in range(draw(st.integers(3, 12))):
        x = draw(st.sampled_from(tensors))
        y = draw(st.sampled_from([item for item in tensors if item.shape == x.shape]))
        kind = draw(
            st.sampled_from(["conv", "mish", "leaky", "sigmoid", "gate", "add", "mul", "concat"])
        )
        if kind == "conv" or (kind == "concat" and x.channels > 64):
            tensors.append(b.conv(x, draw(widths), draw(st.sampled_from([1, 3]))))
        elif kind in ("add", "mul", "concat"):
            binary: dict[str, Callable[[ZooTensor, ZooTensor], ZooTensor]]
            binary = {"add": b.add, "mul": b.mul, "concat": b.concat}
            tensors.append(binary[kind](x, y))
        else:
            unary = {
                "mish": mish,
                "leaky": leaky,
                "sigmoid": SkeletonBuilder.sigmoid,
                "gate": gated,
            }[kind]
            tensors.append(unary(b, x))
    read = {name for item in b._nodes for name in item.input}
    return head(b, b.concat(*(item for item in tensors if item.name not in read)))


@examples(3, many=250)
@given(model=networks(), slice_bytes=st.sampled_from([1 << 10, 5000, 1 << 20]))
def test_drawn_networks_give_what_onnxruntime_gives(
    tmp_path_factory: pytest.TempPathFactory, model: onnx.ModelProto, slice_bytes: int
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(chains_module, "_SLICE_BYTES", slice_bytes)
        patch.setattr(chains_module, "_LEAST_BYTES", 1)
        check(model, tmp_path_factory.mktemp("drawn"))


def test_a_chain_is_sliced_and_needs_the_memory_of_a_slice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(chains_module, "_SLICE_BYTES", 4096)
    monkeypatch.setattr(chains_module, "_LEAST_BYTES", 1)
    b = SkeletonBuilder("mish", 32)
    x = mish(b, b.conv(b.image, 32, 3))
    manifest = check(head(b, x), tmp_path)
    (layer,) = (layer for layer in manifest.layers if layer.operator == "HardSigmoid")
    assert layer.end_piece - layer.first_piece == 32 * 32 * 32 * 4 // 4096
    inner = [value for value in manifest.values if value.n_bytes == 4096]
    assert len(inner) == 4  # the convolution makes -x
    assert sum(value.parent is None for value in inner) == 1


def test_a_slice_is_not_larger_than_a_tensor_that_no_alignment_divides(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(chains_module, "_LEAST_BYTES", 1)
    b = SkeletonBuilder("odd", 31)
    soft = node(b, "Softmax", b.conv(b.image, 3, 3), axis=1)
    manifest = check(head(b, b.mul(soft, node(b, "HardSigmoid", soft))), tmp_path)
    (inner,) = (value for value in manifest.values if value.name == "hardsigmoid1")
    assert inner.n_bytes == 3 * 31 * 31 * 4


@needs_blocks
def test_a_gate_of_what_others_read_too(tmp_path: Path) -> None:
    """Its means are of what is there before a bottleneck, which groups of channels do not compute."""
    b = SkeletonBuilder("read twice", 12)
    x = mish(b, b.conv(b.image, 64, 3))
    y = b.conv(node(b, "Tanh", gated(b, x)), 16, 1)
    check(head(b, b.concat(x, y)), tmp_path)


@needs_blocks
@pytest.mark.parametrize("is_read", [True, False])
def test_repeated_pixels_lie_in_blocks_where_a_convolution_reads_them(
    is_read: bool, tmp_path: Path
) -> None:
    """Else what they are of is turned: a quarter of the memory."""
    b = SkeletonBuilder("larger", 12)
    x = b.upsample(b.relu(b.conv(b.image, 48, 3)))
    manifest = check(filled(b.model(b.conv(x, 32, 3) if is_read else x), seed=2), tmp_path)
    kinds = {layer.operator for layer in manifest.layers}
    assert ("Upsample" in kinds, "Resize" in kinds) == (is_read, not is_read)
