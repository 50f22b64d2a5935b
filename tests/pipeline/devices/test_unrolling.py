"""What plain convolutions allocate is bounded for any number of threads, not for the compiler's alone."""

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import numpy_helper
from onnx.parser import parse_model

from loader.buffers import PAGE_BYTES
from models.compiler import CompileOptions, compile_onnx
from models.packs.pack import Pack, open_pack
from models.runtime.heap import heap_bytes
from pipeline.devices.cpu import CpuDevice
from pipeline.program.prepare import prepare
from tests.models.nets import parsed

ROOT = Path(__file__).parents[3]


def plain() -> onnx.ModelProto:
    """Convolutions that have no blocked kernel: odd groups, more groups than cores, along one axis.

    And what copies its tensor: LRN, Softmax along another axis than the last.
    """
    return parsed(
        """plain (float[1,3,64,64] x, float[1,3,20000] v, float[1,64,56,56] p)
        => (float[1,9,31,31] y, float[1,8,19996] z, float[1,64,56,56] q, float[1,64,56,56] r) {
            a = Conv<kernel_shape=[3,3]>(x, wa)
            b = Conv<kernel_shape=[3,3], group=5>(a, wb)
            c = Conv<kernel_shape=[5,5]>(b, wc)
            d = Conv<kernel_shape=[3,3], group=42>(c, wd)
            e = Conv<kernel_shape=[1,1], strides=[2,2], group=3>(d, we)
            f = ConvTranspose<kernel_shape=[2,2]>(e, wf)
            y = Conv<kernel_shape=[1,1]>(f, wg)
            w = Conv<kernel_shape=[3]>(v, wh)
            z = Conv<kernel_shape=[3]>(w, wi)
            q = LRN<size=3>(p)
            r = Softmax<axis=1>(p)
        }""",
        {
            "wa": (5, 3, 3, 3),
            "wb": (10, 1, 3, 3),
            "wc": (42, 10, 5, 5),
            "wd": (42, 1, 3, 3),
            "we": (6, 14, 1, 1),
            "wf": (6, 6, 2, 2),
            "wg": (9, 6, 1, 1),
            "wh": (5, 3, 3),
            "wi": (8, 5, 3),
        },
    )


def quantised() -> onnx.ModelProto:
    """Quantised operators that sum in memory of their own: channels first and last, groups, strides."""
    model = parse_model(
        """<ir_version: 9, opset_import: ["" : 17, "com.microsoft" : 1]>
        quantised (uint8[1,16,40,40] x, uint8[1,40,40,16] v, uint8[200,300] m, float[1,300] f,
            uint8[1,640,16,16] c)
        => (uint8[1,16,40,40] y, uint8[1,8,19,19] z, uint8[1,19,19,16] p, uint8[200,96] q,
            int32[1,8,38,38] i, uint8[1,32,1,1] g, float[1,96] d,
            uint8[1,640,1,1] h, uint8[1,640,8,8] j, uint8[1,8,38,38] r) {
            y = QLinearConv<group=16, pads=[1,1,1,1]>(x, s, k, wa, s, k, s, k)
            a = QLinearConv(x, s, k, wb, s, k, s, k)
            z = QLinearConv<strides=[2,2]>(x, s, k, wb, s, k, s, k)
            p = com.microsoft.NhwcMaxPool<kernel_shape=[3,3], strides=[2,2]>(v)
            q = QLinearMatMul(m, s, k, wc, s, k, s, k)
            i = ConvInteger(x, wb, k, k)
            e = QLinearConv<kernel_shape=[1,1]>(a, s, k, we, s, k, s, k)
            g = com.microsoft.QLinearGlobalAveragePool(e, s, k, s, k)
            h = com.microsoft.QLinearGlobalAveragePool(c, s, k, s, k)
            j = com.microsoft.QLinearAveragePool<kernel_shape=[2,2], strides=[2,2]>(c, s, k, s, k)
            d = com.microsoft.DynamicQuantizeMatMul(f, wc, s, k)
            b = QLinearConv(x, s, k, wb, s, k, s, k)
            r = com.microsoft.QLinearLeakyRelu(b, s, k, s, k)
        }"""
    )
    weights = {"wa": (16, 1, 3, 3), "wb": (8, 16, 3, 3), "wc": (300, 96), "we": (32, 8, 1, 1)}
    arrays = {name: np.ones(shape, np.uint8) for name, shape in weights.items()}
    arrays |= {"s": np.array(0.5, np.float32), "k": np.array(3, np.uint8)}
    model.graph.initializer.extend(
        numpy_helper.from_array(array, name) for name, array in arrays.items()
    )
    return model


def compiled(make: Callable[[], onnx.ModelProto], folder: Path) -> Pack:
    name = make.__name__
    onnx.save(make(), folder / f"{name}.onnx")
    return open_pack(
        compile_onnx(folder / f"{name}.onnx", folder / "packs" / name, CompileOptions())
    )


@pytest.mark.skipif(heap_bytes() is None, reason="the C library does not count its heap")
@pytest.mark.parametrize(
    "counts", [(1, 3, 16), pytest.param((2, 5, 40), marks=pytest.mark.slow)], ids=str
)
def test_pieces_allocate_what_was_bounded(counts: tuple[int, ...], tmp_path: Path) -> None:
    packs = [compiled(make, tmp_path) for make in (plain, quantised)]
    command = [sys.executable, "-m", "tests.pipeline.devices.heap_peak", json.dumps(counts)]
    done = subprocess.run(
        [*command, *(str(pack.folder) for pack in packs)],
        capture_output=True,
        text=True,
        check=True,
        cwd=ROOT,
    )
    for pack, peaks in zip(packs, json.loads(done.stdout), strict=True):
        are_bounded(pack, peaks, counts)


def are_bounded(pack: Pack, peaks: dict[str, list[int]], counts: tuple[int, ...]) -> None:
    device = CpuDevice(1, native=False)
    more_than_compiled = 0
    assert max(map(max, peaks.values())) > 10 * PAGE_BYTES  # or nothing was measured
    for threads in counts:
        device.threads = threads
        pieces = prepare(pack, device).pieces
        for piece, peak, compiled in zip(
            pieces, peaks[str(threads)], pack.manifest.pieces, strict=True
        ):
            # A block has a header, and both lie on whole pages.
            assert peak <= piece.scratch_bytes + 2 * PAGE_BYTES, (threads, piece.outputs)
            more_than_compiled += peak > compiled.scratch_bytes + 2 * PAGE_BYTES
    if pack.name == "plain":
        assert more_than_compiled > 2  # or the bound would not depend on the threads
