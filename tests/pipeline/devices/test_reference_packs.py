"""Whole networks, compiled and streamed, on the CPU device and on the reference device.

Both are held against ONNX Runtime on the file that was compiled.
"""

import itertools
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

import models.default
from loader.pool.pool import ReadPool
from models.compiler import CompileOptions, compile_onnx
from models.packs.manifest import Manifest
from models.packs.pack import Pack, open_pack
from models.runtime.sessions import open_resident
from models.zoo.builder import SkeletonBuilder, ZooTensor
from pipeline.devices.base import Device
from pipeline.devices.cpu import CpuDevice
from pipeline.execution.opened import opened
from pipeline.planning.make import make_plan
from pipeline.planning.plan import Choice, Plan
from pipeline.program.program import Program
from pipeline.schedule.architectures import ARCHITECTURES
from tests.examples import examples, thinned
from tests.models.nets import filled
from tests.oracle.device import ReferenceDevice
from tests.pipeline.devices.nodes import needs_blocks

Tensors = dict[str, NDArray[Any]]

CHUNK_BYTES = 4 << 10  # a fraction of the larger layers below
CIFAR10 = Path(models.default.__file__).with_name("cifar10.onnx")


def fire(b: SkeletonBuilder, x: ZooTensor, squeezed: int, expanded: int) -> ZooTensor:
    """Add SqueezeNet's module: one narrow convolution, then two whose results are joined."""
    x = b.relu(b.conv(x, squeezed, 1, bias=True))
    parts = (b.relu(b.conv(x, expanded, kernel, bias=True)) for kernel in (1, 3))
    return b.concat(*parts)


def residual() -> onnx.ModelProto:
    b = SkeletonBuilder("residual", 16)
    x = b.relu(b.norm(b.conv(b.image, 16, 3)))
    for width, stride in ((16, 1), (64, 2), (64, 1)):
        y = b.relu(b.norm(b.conv(x, width, 3, stride)))
        y = b.norm(b.conv(y, width, 3))
        x = b.relu(b.add(y, x if stride == 1 else b.norm(b.conv(x, width, 1, stride))))
    return filled(b.model(b.linear(b.flatten(b.global_pool(x)), 10)))


def squeeze() -> onnx.ModelProto:
    b = SkeletonBuilder("squeeze", 17)
    x = b.max_pool(b.relu(b.conv(b.image, 32, 3, 2, bias=True)), 3, 2)
    x = fire(b, fire(b, x, 16, 32), 32, 64)
    return filled(b.model(b.global_pool(b.relu(b.conv(x, 10, 1, bias=True)))), seed=1)


def dense() -> onnx.ModelProto:
    """Join inputs that are read elsewhere, too, and of which one is joined twice."""
    b = SkeletonBuilder("dense", 9)
    x = b.relu(b.conv(b.image, 32, 3))
    for _ in range(3):
        x = b.concat(x, b.relu(b.norm(b.conv(x, 64, 3))))
    return filled(b.model(b.linear(b.flatten(b.max_pool(x, 2, 2)), 7)), seed=2)


def vgg() -> onnx.ModelProto:
    """End in matrices far above the chunk limit."""
    b = SkeletonBuilder("vgg", 12)
    x = b.image
    for width in (16, 48):
        x = b.max_pool(b.relu(b.conv(x, width, 3, bias=True)), 2, 2)
    x = b.relu(b.linear(b.relu(b.linear(b.flatten(x), 130)), 70))
    return filled(b.model(b.linear(x, 11)), seed=3)


def separable() -> onnx.ModelProto:
    """Alternate convolutions of one channel a group with pointwise ones, some not in blocks."""
    b = SkeletonBuilder("separable", 11)
    x = b.relu(b.norm(b.conv(b.image, 24, 3, 2)))
    for width in (96, 200):
        x = b.relu(b.norm(b.conv(x, x.channels, 3, groups=x.channels)))
        x = b.relu(b.norm(b.conv(x, width, 1)))
    return filled(b.model(b.linear(b.flatten(b.global_pool(x)), 5)), seed=4)


def cifar10() -> onnx.ModelProto:
    return onnx.load(CIFAR10)


@st.composite
def networks(draw: st.DrawFn) -> onnx.ModelProto:
    """Draw layers one by one, each on any tensors before it; what nothing read is joined at the end."""
    b = SkeletonBuilder("drawn", 8)
    widths = st.sampled_from([8, 16, 20, 32])
    tensors = [b.conv(b.image, draw(widths), 3)]
    for _ in range(draw(st.integers(2, 9))):
        x = draw(st.sampled_from(tensors))
        y = draw(st.sampled_from([tensor for tensor in tensors if tensor.shape == x.shape]))
        layers: dict[str, Callable[[ZooTensor, ZooTensor], ZooTensor]] = {
            "conv": lambda x, _: b.norm(b.conv(x, draw(widths), draw(st.sampled_from([1, 3])))),
            "conv+add": lambda x, y: b.add(b.conv(x, x.channels, 3), y),
            "add": b.add,
            "concat": b.concat,
            "pool": lambda x, _: b.max_pool(x, 3, 1, pad=1),
            "relu": lambda x, _: b.relu(x),
        }
        kinds = [kind for kind in layers if kind != "concat" or x.channels <= 64]
        tensors.append(layers[draw(st.sampled_from(kinds))](x, y))
    read = {name for node in b._nodes for name in node.input}
    last = b.concat(*(tensor for tensor in tensors if tensor.name not in read))
    model = b.model(b.linear(b.flatten(b.global_pool(last)), 3))
    return filled(model, seed=draw(st.integers(0, 99)))


def compiled(model: onnx.ModelProto, folder: Path, chunk_bytes: int = CHUNK_BYTES) -> Pack:
    onnx.save(model, folder / "source.onnx")
    options = CompileOptions(chunk_bytes=chunk_bytes, force=True)
    return open_pack(compile_onnx(folder / "source.onnx", folder / "net", options))


def random_inputs(manifest: Manifest, seed: int) -> Tensors:
    generator = np.random.default_rng(seed)
    return {
        port.name: generator.standard_normal(port.shape).astype(port.dtype)
        for port in manifest.inputs
    }


def plans(pack: Pack) -> Iterator[Plan]:
    """Yield plans of all kinds of architectures, with the finest chunks or with whole layers."""
    program = Program.as_compiled(pack)
    fine, whole = Choice(chunk_bytes=0), Choice(chunk_bytes=1 << 30)
    for name, choice in (("pre", whole), ("seq", fine), ("sync", fine), ("async", whole)):
        yield make_plan(program, ARCHITECTURES[name], choice=choice)
    least = program.largest_chunk_bytes
    for choice in (fine, whole, Choice(2 * least + 4096, least, ahead="tail")):
        yield make_plan(program, ARCHITECTURES["2s"], choice=choice)


def assert_agree(pack: Pack, pool: ReadPool, devices: Sequence[Device]) -> None:
    """Assert that all plans on all devices give what ONNX Runtime makes of the source."""
    session = open_resident(str(pack.folder.parent.with_name("source.onnx")))
    # The second sweep of an engine starts on what the first one left in its memory.
    images = [random_inputs(pack.manifest, seed) for seed in range(2)]
    expected = [session.run(None, image)[0] for image in images]
    for device, plan in itertools.product(devices, plans(pack)):
        with opened(Program.as_compiled(pack), plan, device, pool) as engine:
            for image, wanted in zip(images, expected, strict=True):
                (result,) = engine.run(image)[0].values()
                error = np.abs(result - wanted).max() / np.abs(wanted).max()
                assert error < 1e-4, (plan.architecture.name, plan.choice)


@pytest.fixture(scope="module")
def pool() -> Iterator[ReadPool]:
    pool = ReadPool()
    yield pool
    pool.close()


_SMALL = (residual, squeeze, dense, vgg, separable)


@pytest.fixture(
    scope="module", params=[*thinned(_SMALL, 2), pytest.param(cifar10, marks=pytest.mark.slow)]
)
def pack(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Pack:
    return compiled(request.param(), tmp_path_factory.mktemp("pack"))


def test_devices_agree_with_the_source(pack: Pack, pool: ReadPool) -> None:
    assert_agree(pack, pool, [CpuDevice(), ReferenceDevice()])


@needs_blocks
def test_networks_have_layers_in_chunks(pack: Pack) -> None:
    """Without chunks the networks would not test what they are here for."""
    assert any(layer.end_piece - layer.first_piece > 1 for layer in pack.manifest.layers)


@given(networks(), st.sampled_from([2 << 10, 16 << 10, 1 << 20]))
@examples(2, many=50, database=None)
def test_drawn_networks(
    tmp_path_factory: pytest.TempPathFactory,
    pool: ReadPool,
    model: onnx.ModelProto,
    chunk_bytes: int,
) -> None:
    pack = compiled(model, tmp_path_factory.mktemp("drawn"), chunk_bytes)
    assert_agree(pack, pool, [CpuDevice(), ReferenceDevice()])
