"""Real operators on rows: whatever runs on them, the answers have the bits of whole tensors."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from pathlib import Path
from random import Random
from typing import Any, get_args

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from numpy.typing import NDArray

from loader.pool.pool import ReadPool
from loader.readers.fakes import MemoryReader
from models.compiler import CompileOptions, compile_onnx
from models.network.operators.pooling import PoolKind
from models.packs.pack import Pack, open_pack
from models.packs.target import host_target, named_target
from pipeline.devices.base import Device
from pipeline.devices.cpu import CpuDevice
from pipeline.execution.engine import Engine
from pipeline.execution.opened import open_pipeline
from pipeline.fitting.row_variants import row_variants
from pipeline.planning.make import make_plan
from pipeline.planning.plan import Choice, partitioned
from pipeline.program.partitions import Cuts
from pipeline.program.program import Program
from pipeline.program.region_plan import Action, AreaCopy, Cut, Region, RowCut
from pipeline.program.steps import planned_region, row_network
from pipeline.schedule.architectures import ARCHITECTURES
from tests.examples import thinned
from tests.models.nets import CHUNK_BYTES, inputs_for, parsed
from tests.oracle.device import ReferenceDevice
from tests.pipeline.program.regions import is_possible, largest_regions, random_regions

Outputs = Mapping[str, NDArray[np.float32]]
Machine = tuple[Device, ReadPool]
blocked = pytest.mark.skipif(host_target().block == 1, reason="no blocked layout here")

_ROWS = (1, 3)
W1, W3, W5, W7 = ((32, 32, n, n) for n in (1, 3, 5, 7))


@dataclass(frozen=True)
class Case:
    """A network of x, [1, 32, 13, 9] unless ``source`` says otherwise.

    ``whole``: how many of its pieces need whole tensors.
    """

    nodes: str
    weights: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    source: str = "1,32,13,9"
    whole: int = 0

    def model(self) -> onnx.ModelProto:
        """Return it; its output is y."""
        text = f"rows (float[{self.source}] x) => (float[n,c,h,w] y) {{ {self.nodes} }}"
        model = parsed(text, self.weights)
        del model.graph.output[0].type.tensor_type.shape.dim[:]
        model.graph.output[0].type.tensor_type.ClearField("shape")
        return onnx.shape_inference.infer_shapes(model, data_prop=True)


#: A node of each kind of pool, with padding above and below.
_POOLS: Mapping[PoolKind, str] = {
    "largest": "MaxPool<kernel_shape=[3,3], pads=[1,1,1,1]>",
    "mean": "AveragePool<kernel_shape=[3,3], pads=[1,1,1,1], count_include_pad=1>",
}

# fmt: off
CASES = {
    "normalised pixels": Case("""
        a = BatchNormalization(x, scale, shift, mean, variance)
        b = Conv<pads=[1,1,1,1], strides=[2,2]>(a, wa)
        y = Conv<pads=[1,1,1,1]>(b, wb)
    """, {"wa": (32, 3, 3, 3), "wb": W3}, source="1,3,31,21"),
    "strides": Case("""
        a = Conv<pads=[1,1,1,1], strides=[2,2]>(x, wa)
        b = Relu(a)
        y = Conv<pads=[1,0,1,2], strides=[3,1]>(b, wb)
    """, {"wa": W3, "wb": W3}),
    "padding by name": Case("""
        a = Conv<auto_pad="SAME_UPPER", strides=[2,2]>(x, wa)
        b = MaxPool<auto_pad="SAME_LOWER", kernel_shape=[2,2]>(a)
        c = Conv<auto_pad="SAME_UPPER", group=32>(b, wb)
        y = Conv<auto_pad="SAME_LOWER">(c, wc)
    """, {"wa": W3, "wb": (32, 1, 5, 5), "wc": W1}, source="1,32,14,9"),
    "kernels": Case("""
        a = Conv<pads=[2,1,3,1]>(x, wa)
        b = Conv(a, wb)
        y = Conv<pads=[3,3,3,3]>(b, wc)
    """, {"wa": W5, "wb": W1, "wc": W7}),
    "dilations": Case("""
        a = Conv<pads=[2,2,2,2], dilations=[2,2]>(x, wa)
        y = Conv<pads=[3,0,0,3], dilations=[3,1]>(a, wb)
    """, {"wa": W3, "wb": W3}),
    "another name of what was made": Case("""
        a = Conv<pads=[1,1,1,1]>(x, wa)
        shape = Constant<value_ints=[1,32,9,13]>()
        b = Reshape(a, shape)
        c = HardSigmoid(b)
        y = Conv<pads=[1,1,1,1]>(c, wb)
    """, {"wa": W3, "wb": W3}),
    "a value a channel": Case("""
        a = Conv<pads=[1,1,1,1]>(x, wa)
        b = GlobalAveragePool(a)
        c = Add(a, b)
        d = Relu(c)
        y = Conv<pads=[1,1,1,1]>(d, wb)
    """, {"wa": W3, "wb": W3}, whole=1),
    "a constant of more channels": Case("""
        a = Mul(x, k)
        b = Conv<pads=[1,1,1,1]>(a, wa)
        y = Conv<pads=[1,1,1,1]>(b, wb)
    """, {"k": (1, 32, 1, 1), "wa": W3, "wb": W3}, source="1,1,13,9", whole=1),
    "a constant of more columns": Case("""
        a = Sub(x, k)
        b = Conv<pads=[1,1,1,1]>(a, wa)
        y = Conv<pads=[1,1,1,1]>(b, wb)
    """, {"k": (1, 1, 1, 9), "wa": W3, "wb": W3}, source="1,32,13,1", whole=1),
    "groups": Case("""
        a = Conv<group=2, pads=[1,1,1,1]>(x, wa)
        b = Conv<group=64, pads=[1,1,1,1], strides=[2,2]>(a, wb)
        c = Clip(b, low, high)
        y = Conv(c, wc)
    """, {"wa": (64, 16, 3, 3), "wb": (64, 1, 3, 3), "wc": (32, 64, 1, 1)}),
    "photograph": Case("""
        a = Conv<pads=[3,3,3,3], strides=[2,2]>(x, wa)
        b = LeakyRelu<alpha=0.1>(a)
        c = MaxPool<kernel_shape=[3,3], strides=[2,2], pads=[1,1,1,1]>(b)
        y = Conv(c, wb)
    """, {"wa": (32, 3, 7, 7), "wb": (20, 32, 1, 1)}, source="1,3,31,33"),
    "pools": Case("""
        a = Conv(x, wa)
        b = MaxPool<kernel_shape=[3,3], strides=[2,2], ceil_mode=1>(a)
        c = MaxPool<kernel_shape=[5,5], strides=[1,1], pads=[2,2,2,2]>(b)
        d = AveragePool<kernel_shape=[2,2], strides=[1,1]>(c)
        e = AveragePool<kernel_shape=[3,3], strides=[1,1], pads=[1,1,1,1], count_include_pad=1>(d)
        y = Conv(e, wb)
    """, {"wa": W1, "wb": W1}),
    "means at borders": Case("""
        a = Conv<pads=[2,2,2,2]>(x, wa)
        b = AveragePool<kernel_shape=[3,3], strides=[1,1], pads=[1,1,1,1]>(a)
        y = Conv<pads=[2,2,2,2]>(b, wb)
    """, {"wa": W5, "wb": W5}, whole=1),
    "means of what is left": Case("""
        a = Conv<pads=[2,2,2,2]>(x, wa)
        b = AveragePool<kernel_shape=[2,2], strides=[2,2], ceil_mode=1>(a)
        y = Conv<pads=[2,2,2,2]>(b, wb)
    """, {"wa": W5, "wb": W5}, whole=1),
    "residual": Case("""
        a = Conv<pads=[1,1,1,1]>(x, wa)
        b = Conv(a, wb)
        c = Relu(b)
        d = Conv<pads=[1,1,1,1]>(c, wc)
        e = Add(d, a)
        f = Relu(e)
        g = Conv<pads=[1,1,1,1]>(f, wd)
        h = Conv<pads=[1,1,1,1]>(g, we)
        y = Add(h, f)
    """, {"wa": W3, "wb": W1, "wc": W3, "wd": W3, "we": W3}),
    "a sum of what is read": Case("""
        a = Conv<pads=[1,1,1,1]>(x, wa)
        b = Conv<pads=[1,1,1,1]>(a, wb)
        c = Add(b, a)
        y = Conv<pads=[1,1,1,1]>(c, wc)
    """, {"wa": W3, "wb": W3, "wc": W3}, whole=1),
    "a window and its sum": Case("""
        a = Conv<pads=[1,1,1,1]>(x, wa)
        b = Conv<pads=[1,1,1,1], group=32>(a, wb)
        c = Conv(b, wc)
        d = Add(c, a)
        y = Relu(d)
    """, {"wa": W3, "wb": (32, 1, 3, 3), "wc": W1}),
    "a sum over what windows read later": Case("""
        a = Conv<pads=[1,1,1,1]>(x, wa)
        b = Conv<pads=[2,1,0,1]>(a, wb)
        c = Conv<pads=[2,1,0,1]>(b, wc)
        d = Add(c, a)
        y = Conv<pads=[1,1,1,1]>(d, wd)
    """, {"wa": W3, "wb": W3, "wc": W3, "wd": W3}),
    "joins": Case("""
        a = Conv<pads=[1,1,1,1]>(x, wa)
        b = Conv<pads=[1,1,1,1]>(a, wb)
        ab = Concat<axis=1>(a, b)
        c = Conv(ab, wc)
        abc = Concat<axis=1>(ab, c)
        d = Relu(abc)
        y = Conv<strides=[2,2], pads=[1,1,1,1]>(d, wd)
    """, {"wa": W3, "wb": W3, "wc": (32, 64, 1, 1), "wd": (32, 96, 3, 3)}),
    "splits": Case("""
        a = Conv<pads=[1,1,1,1]>(x, wa)
        b, c = Split<axis=1>(a)
        d = Sigmoid(b)
        e = Mul(d, c)
        y = Conv<pads=[1,1,1,1]>(e, wb)
    """, {"wa": (64, 32, 3, 3), "wb": W3}),
    "shuffled channels": Case("""
        a = Conv<pads=[1,1,1,1]>(x, wa)
        b, c = Split<axis=1>(a)
        d = Conv<pads=[1,1,1,1]>(c, wb)
        e = Concat<axis=1>(b, d)
        f = Reshape(e, apart)
        g = Transpose<perm=[0,2,1,3,4]>(f)
        h = Reshape(g, together)
        i = Slice(h, first, end, axis)
        j = Conv<pads=[1,1,1,1]>(i, wc)
        y = Add(j, b)
    """, {"wa": (64, 32, 3, 3), "wb": W3, "wc": W3}),
    "repeated channels": Case("""
        a = Conv<pads=[1,1,1,1]>(x, wa)
        b = Expand(x, wide)
        c = Concat<axis=1>(a, b)
        y = Conv<pads=[1,1,1,1]>(c, wb)
    """, {"wa": (3, 1, 3, 3), "wb": (32, 6, 3, 3)}, source="1,1,13,9"),
    "patches": Case("""
        a = Slice(x, p0, p1, both)
        b = Conv<pads=[1,1,1,1], strides=[2,2]>(a, wa)
        c = Slice(x, p2, p3, both)
        d = Conv<pads=[1,1,1,1], strides=[2,2]>(c, wb)
        e = Slice(d, p4, p5, rows)
        f = Conv<pads=[1,1,1,1]>(e, wc)
        g = Slice(b, p4, p5, rows)
        h = Add(f, g)
        y = Conv<pads=[1,1,1,1]>(h, wd)
    """, {"wa": (32, 3, 3, 3), "wb": (32, 3, 3, 3), "wc": W3, "wd": W3}, source="1,3,31,33"),
    "rearranged pixels": Case("""
        a = SpaceToDepth<blocksize=2>(x)
        b = Conv<pads=[1,1,1,1]>(a, wa)
        y = DepthToSpace<blocksize=2, mode="CRD">(b)
    """, {"wa": (64, 12, 3, 3)}, source="1,3,14,10"),
    "plain pools": Case("""
        a = MaxPool<kernel_shape=[3,3], strides=[2,2], pads=[1,1,1,1], ceil_mode=1>(x)
        b = MaxPool<kernel_shape=[2,3], strides=[1,1], dilations=[2,1]>(a)
        c = AveragePool<kernel_shape=[3,3], strides=[1,1]>(b)
        y = AveragePool<kernel_shape=[3,3], pads=[1,1,1,1], count_include_pad=1>(c)
    """, source="1,3,31,21"),
    "means of windows as wide as their input": Case("""
        a = AveragePool<kernel_shape=[3,3], pads=[0,1,0,1], count_include_pad=1>(x)
        b = AveragePool<kernel_shape=[3,3]>(a)
        y = MaxPool<kernel_shape=[3,1]>(b)
    """, source="1,3,12,3", whole=2),
    "activations": Case("""
        a = Conv<pads=[1,1,1,1]>(x, wa)
        s = Softplus(a)
        t = Tanh(s)
        mish = Mul(a, t)
        b = Conv<pads=[1,1,1,1]>(mish, wb)
        u = Sigmoid(b)
        silu = Mul(b, u)
        c = Conv(silu, wc)
        d = HardSigmoid(c)
        y = Mul(c, d)
    """, {"wa": W3, "wb": W3, "wc": W1}),
    "celu": Case("""
        a = Conv<pads=[1,1,1,1]>(x, wa)
        b = Celu(a)
        c = Conv<pads=[1,1,1,1]>(b, wb)
        d = Celu<alpha=0.3>(c)
        y = Conv(d, wc)
    """, {"wa": W3, "wb": W3, "wc": W1}),
    "modulo": Case("""
        a = Conv<pads=[1,1,1,1]>(x, wa)
        b = Mod<fmod=1>(a, k)
        c = Mod<fmod=1>(a, b)
        y = Conv<pads=[1,1,1,1]>(c, wb)
    """, {"wa": W3, "k": (1, 32, 1, 1), "wb": W3}),
    "elements of no whole vector": Case("""
        a = Neg(x)
        b = Exp(a)
        c = Sigmoid(b)
        d = Tanh(a)
        e = Erf(d)
        f = Abs(e)
        g = Sqrt(f)
        h = HardSwish(g)
        y = Add(c, h)
    """, source="1,3,13,7"),
    "uneven kernels": Case("""
        a = Conv<pads=[2,2,2,2]>(x, wa)
        b = Softplus(a)
        c = Elu(a)
        d = Add(b, c)
        e = Abs(d)
        f = Log(e)
        g = Selu(f)
        y = Conv<pads=[2,2,2,2]>(g, wb)
    """, {"wa": W5, "wb": W5}, whole=1),
    "enlarged": Case("""
        a = Conv<pads=[1,1,1,1], strides=[2,2]>(x, wa)
        scales = Constant<value_floats=[1.0,1.0,2.0,2.0]>()
        b = Resize<mode="nearest", coordinate_transformation_mode="asymmetric", nearest_mode="floor">
            (a, , scales)
        c = Conv<pads=[0,1,0,1]>(b, wb)
        d = Conv<pads=[0,1,0,1]>(x, wc)
        e = Concat<axis=1>(d, c)
        y = Conv(e, wd)
    """, {"wa": W3, "wb": W3, "wc": W3, "wd": (16, 64, 1, 1)}, source="1,32,14,10"),
    "enlarged to sizes": Case("""
        a = Resize<mode="nearest">(x, , , sizes)
        b = Conv<pads=[1,1,1,1]>(a, wa)
        c = Resize<mode="nearest", coordinate_transformation_mode="align_corners">(b, , , more)
        y = Conv<pads=[1,1,1,1], strides=[2,2]>(c, wb)
    """, {"wa": (32, 3, 3, 3), "wb": W3}, source="1,3,13,9", whole=1),
    "a row of padding alone": Case("""
        a = Conv<pads=[1,1,3,1]>(x, wa)
        y = Conv<pads=[1,1,1,1]>(a, wb)
    """, {"wa": W3, "wb": W3}, whole=1),
    "pads as large as a kernel": Case("""
        a = Conv<pads=[3,1,1,3]>(x, wa)
        b = Conv<pads=[1,1,1,1]>(a, wb)
        c = Conv<pads=[2,2,2,2]>(b, wc)
        y = Conv<pads=[1,1,1,1]>(c, wd)
    """, {"wa": W3, "wb": W1, "wc": W5, "wd": W3}, whole=1),
    "padding of a kernel of one pixel": Case("""
        a = Conv<pads=[0,0,1,1], strides=[2,2]>(x, wa)
        b = Conv<pads=[1,1,1,1]>(a, wb)
        c = Conv<pads=[0,0,1,0]>(b, wc)
        y = Conv<pads=[1,1,1,1]>(c, wb2)
    """, {"wa": (160, 32, 1, 1), "wb": (48, 160, 3, 3), "wc": (320, 48, 1, 1), "wb2": (8, 320, 3, 3)},
        whole=3),
    "one pixel": Case("""
        a = Conv<pads=[1,1,1,1]>(x, wa)
        b = Relu(a)
        y = Conv<pads=[2,2,2,2]>(b, wb)
    """, {"wa": W3, "wb": W5}, source="1,32,1,1"),
    **{f"pools with padding: {kind}": Case(f"""
        a = Conv<pads=[1,1,1,1]>(x, wa)
        b = {node}(a)
        y = Conv<pads=[1,1,1,1]>(b, wb)
    """, {"wa": W3, "wb": W3}) for kind, node in _POOLS.items()},
}
# fmt: on
_CONSTANTS: Mapping[str, NDArray[Any]] = {
    "scale": np.array([0.7, -1.3, 0.2], np.float32),
    "shift": np.array([0.1, 0.3, -2.1], np.float32),
    "mean": np.array([0.485, 0.456, 0.406], np.float32),
    "variance": np.array([0.229, 0.224, 0.225], np.float32),
    "low": np.array(-0.3, np.float32),
    "high": np.array(0.4, np.float32),
    "apart": np.array([1, 2, 32, 13, 9]),
    "sizes": np.array([1, 3, 26, 18]),
    "more": np.array([1, 32, 39, 31]),
    "together": np.array([1, 64, 13, 9]),
    "wide": np.array([1, 3, 13, 9]),
    "p0": np.array([0, 3]),
    "p1": np.array([20, 21]),
    "p2": np.array([11, 15]),
    "p3": np.array([31, 33]),
    "both": np.array([2, -1]),
    "p4": np.array([2]),
    "p5": np.array([-1]),
    "rows": np.array([2]),
    "first": np.array([-61]),
    "end": np.array([35]),
    "axis": np.array([1]),
}


def compiled(case: Case, folder: Path, target: str = "cpu") -> Pack:
    """Return ``case`` compiled for ``target``, which this machine runs."""
    options = CompileOptions(chunk_bytes=CHUNK_BYTES, target=named_target(target))
    return open_pack(compile_onnx(written(case, folder), folder / "rows", options))


def written(case: Case, folder: Path) -> Path:
    """Return a file with ``case``."""
    model = case.model()
    for name, number in _CONSTANTS.items():
        model.graph.initializer.append(onnx.numpy_helper.from_array(number, name))
    source = folder / "rows.onnx"
    onnx.save(model, source)
    return source


@pytest.fixture(scope="module")
def pool() -> Iterator[ReadPool]:
    with closing(ReadPool()) as made:
        yield made


@pytest.fixture(scope="module")
def machine(pool: ReadPool) -> Iterator[Machine]:
    with closing(CpuDevice()) as device:
        yield device, pool


def answers(
    pack: Pack,
    machine: Machine,
    regions: tuple[Region, ...] = (),
    architecture: str = "pre",
    requests: Sequence[Outputs] | None = None,
) -> list[Outputs]:
    """Return what ``requests`` get, None: two."""
    program = Program.as_compiled(pack)
    plan = make_plan(program, ARCHITECTURES[architecture], choice=Choice(regions=regions))
    reader = MemoryReader(pack.weights_path.read_bytes())
    ports = {port.name: port.shape for port in program.inputs}
    one = inputs_for(ports)
    asked = requests or [one, {n: -a for n, a in one.items()}]
    with closing(Engine(program, plan, *machine, reader)) as engine:
        engine.open()
        return [engine.run(inputs)[0] for inputs in asked]


def same_bits(found: list[Outputs], expected: list[Outputs]) -> bool:
    return all(
        one.keys() == other.keys() and all(one[n].tobytes() == other[n].tobytes() for n in one)
        for one, other in zip(found, expected, strict=True)
    )


def close(found: list[Outputs], expected: list[Outputs]) -> bool:
    """Return whether numbers differ by no more than sums in another order do, layer after layer."""
    return all(
        one.keys() == other.keys()
        and all(np.abs(one[n] - other[n]).max() <= 4e-6 * np.abs(other[n]).max() for n in one)
        for one, other in zip(found, expected, strict=True)
    )


#: Of rows, and of the whole, as packs of this machine have them.
same = close if host_target().block == 1 else same_bits


def test_every_kind_of_pool_is_among_the_cases() -> None:
    """What padding holds for a kind is seen on rows alone."""
    assert _POOLS.keys() == set(get_args(PoolKind))


@blocked
@pytest.mark.parametrize("name", CASES)
def test_rows_have_the_bits_of_whole_tensors(name: str, machine: Machine, tmp_path: Path) -> None:
    pack = compiled(CASES[name], tmp_path)
    network = row_network(Program.as_compiled(pack))
    assert len(Program.as_compiled(pack).pieces) - len(network.covered) == CASES[name].whole
    expected = answers(pack, machine)
    random = Random(name)
    regions = largest_regions(network, RowCut(random.choice(_ROWS)))
    assert regions
    assert same_bits(answers(pack, machine, regions), expected), regions
    regions = random_regions(random, network)
    found = answers(pack, machine, regions, random.choice(("auto", "2s")))
    assert same_bits(found, expected), regions


@pytest.mark.parametrize(
    "name", thinned(sorted(CASES.keys() - {"modulo"}), 4)
)  # which jumps where sums differ a little
def test_rows_of_plain_tensors(name: str, machine: Machine, tmp_path: Path) -> None:
    """ONNX Runtime divides long sums of a convolution by how many pixels there are: not the same bits."""
    pack = compiled(CASES[name], tmp_path, "aarch64-generic")
    network = row_network(Program.as_compiled(pack))
    expected = answers(pack, machine)
    exact = all(item.exact for item in network.operators)
    equal = same_bits if exact else close
    assert exact == ("Conv" not in CASES[name].nodes)
    random = Random(name)
    regions = largest_regions(network, RowCut(random.choice(_ROWS)))
    assert regions
    assert equal(answers(pack, machine, regions), expected), regions
    regions = random_regions(random, network)
    assert close(answers(pack, machine, regions, random.choice(("auto", "2s"))), expected), regions


MAXIMA = {
    "blocked": Case("""
        a = Conv(x, wa)
        b = MaxPool<kernel_shape=[3,3], strides=[1,1], pads=[1,1,1,1]>(a)
        c = MaxPool<kernel_shape=[3,3], strides=[2,2], ceil_mode=1>(b)
        d = MaxPool<kernel_shape=[5,5], strides=[1,1], pads=[2,2,2,2]>(c)
        y = Relu(d)
    """, {"wa": W1}),
    "one row": Case("""
        a = Conv(x, wa)
        b = MaxPool<kernel_shape=[3,3], strides=[1,1], pads=[1,1,1,1]>(a)
        y = Neg(b)
    """, {"wa": W1}, source="1,32,1,9"),
    "plain": Case("""
        a = MaxPool<kernel_shape=[3,3], strides=[1,1], pads=[1,1,1,1]>(x)
        b = MaxPool<kernel_shape=[3,2], strides=[2,2], pads=[0,0,1,1]>(a)
        y = Neg(b)
    """, source="1,3,13,9"),
    "dilated": Case("""
        a = MaxPool<kernel_shape=[3,3], strides=[1,1], pads=[2,2,2,2], dilations=[2,2]>(x)
        b = MaxPool<kernel_shape=[2,2], strides=[1,1], dilations=[2,2]>(a)
        y = Neg(b)
    """, source="1,3,13,9"),
    "padded above": Case("""
        a = MaxPool<kernel_shape=[3,1], pads=[2,0,0,0]>(x)
        y = Neg(a)
    """, source="1,3,13,9"),
    "as wide as the input": Case("""
        a = Relu(x)
        b = MaxPool<kernel_shape=[3,5]>(a)
        y = Neg(b)
    """, source="1,3,13,5"),
}  # fmt: skip


@blocked
@pytest.mark.parametrize("name", MAXIMA)
def test_what_is_no_number_stays_where_it_was(name: str, machine: Machine, tmp_path: Path) -> None:
    """ONNX Runtime's maximum forgets a NaN that another number follows, one of the padding too."""
    pack = compiled(MAXIMA[name], tmp_path)
    check_no_numbers(pack, (RowCut(1), RowCut(2), RowCut(8)), machine)


def check_no_numbers(pack: Pack, cuts: Sequence[Cut], machine: Machine) -> None:
    network = row_network(Program.as_compiled(pack))
    drawn = np.random.default_rng(3)
    (port,) = Program.as_compiled(pack).inputs
    requests: list[Outputs] = [{"x": np.full(port.shape, np.nan, np.float32)}]
    for share in (0.02, 0.3):
        x = drawn.standard_normal(port.shape, np.float32)
        x[:, :, drawn.random(port.shape[2:]) < share] = np.nan
        requests.append({"x": x})
    expected = answers(pack, machine, requests=requests)
    assert np.isnan(expected[0]["y"]).any()
    for cut in cuts:
        regions = largest_regions(network, cut)
        assert regions
        found = answers(pack, machine, regions, requests=requests)
        for one, other in zip(found, expected, strict=True):
            np.testing.assert_array_equal(one["y"], other["y"])


@blocked
@pytest.mark.parametrize("architecture", sorted(n for n, a in ARCHITECTURES.items() if a.copies))
def test_rows_on_copied_weights(architecture: str, machine: Machine, tmp_path: Path) -> None:
    pack = compiled(CASES["residual"], tmp_path)
    regions = largest_regions(row_network(Program.as_compiled(pack)), RowCut(2))
    found = answers(pack, machine, regions, architecture)
    assert same_bits(found, answers(pack, machine))


@blocked
@pytest.mark.parametrize("name", ["groups", "pools", "splits", "enlarged", "activations"])
def test_rows_on_the_reference_device(name: str, machine: Machine, tmp_path: Path) -> None:
    pack = compiled(CASES[name], tmp_path)
    regions = largest_regions(row_network(Program.as_compiled(pack)), RowCut(2))
    found = answers(pack, (ReferenceDevice(), machine[1]), regions)
    for one, other in zip(found, answers(pack, machine), strict=True):
        np.testing.assert_allclose(one["y"], other["y"], atol=1e-5)


def test_a_batch_runs_whole(machine: Machine, tmp_path: Path) -> None:
    pack = compiled(replace(CASES["residual"], source="2,32,13,9"), tmp_path)
    program = Program.as_compiled(pack)
    assert not program.row_operators
    auto = ARCHITECTURES["auto"]
    assert [variant.regions for variant in row_variants(program, auto, None).variants] == [()]
    assert same_bits(answers(pack, machine, architecture="auto"), answers(pack, machine))


def test_a_normalisation_has_the_same_bits_whatever_its_shape() -> None:
    """What lets it run on rows; others, as LRN, add up or divide by threads: their bits depend on it."""
    drawn = np.random.default_rng(5)
    for _ in range(60):
        planes, height, width = (int(drawn.integers(1, most)) for most in (40, 14, 20))
        statistics = {name: drawn.random(planes, np.float32) + 0.1 for name in "sbmv"}
        ports = ", ".join(f"float[{planes}] {name}" for name in statistics)
        node = "{ y = BatchNormalization(x, s, b, m, v) }"
        text = f"bn (float[1,c,h,w] x, {ports}) => (float[1,c,h,w] y) {node}"
        session = ort.InferenceSession(parsed(text).SerializeToString())
        x = drawn.standard_normal((1, planes, height, width), np.float32)
        (whole,) = session.run(None, {"x": x, **statistics})
        for rows in (1, 2, 3):
            for first in range(0, height, rows):
                part = np.ascontiguousarray(x[:, :, first : first + rows])
                (found,) = session.run(None, {"x": part, **statistics})
                assert found.tobytes() == whole[:, :, first : first + rows].tobytes()


@blocked
def test_rows_are_loaded_before_a_sum_takes_their_place(machine: Machine, tmp_path: Path) -> None:
    """A region that begins after what it adds: windows reach back to rows that the sum has written."""
    pack = compiled(CASES["a sum over what windows read later"], tmp_path)
    region = Region(1, 3, RowCut(2))  # from after a to d
    plan = planned_region(Program.as_compiled(pack), region)
    (added,) = plan.read
    height = row_network(Program.as_compiled(pack)).values[added].height
    assert sum(_copied(phase, added) for phase in plan.phases) == height  # each row once
    assert same_bits(answers(pack, machine, (region,)), answers(pack, machine))


def _copied(phase: Sequence[Action], value: int) -> int:
    """Return how many rows of ``value`` are copied from where it lies whole."""
    moves = [action.source for action in phase if isinstance(action, AreaCopy)]
    return sum(area.rows for area in moves if (area.strip, area.row_value) == (None, value))


def test_rows_up_to_a_cut_where_another_name_crosses(machine: Machine, tmp_path: Path) -> None:
    """Channels that are shuffled in five dimensions cross; rows have them in four."""
    pack = compiled(CASES["shuffled channels"], tmp_path)
    cuts, expected = Cuts(Program.as_compiled(pack)), answers(pack, machine)
    checked = 0
    for cut in cuts.places:
        front, _ = cuts.parts([cut])
        for first in range(cut):
            region = Region(first, cut, RowCut(2))
            if not is_possible(row_network(front), region):
                continue
            found = []
            for part, regions in zip(cuts.parts([cut]), ((region,), ()), strict=True):
                found.append(make_plan(part, ARCHITECTURES["pre"], choice=Choice(regions=regions)))
            plan = partitioned(found, [cut], [cuts.edge_bytes(cut)])
            ports = {port.name: port.shape for port in Program.as_compiled(pack).inputs}
            with closing(
                open_pipeline(Program.as_compiled(pack), plan, [machine[0]] * 2, machine[1])
            ) as pipeline:
                assert same([pipeline.run(inputs_for(ports))[0]], expected[:1]), (cut, first)
            checked += 1
    assert checked
