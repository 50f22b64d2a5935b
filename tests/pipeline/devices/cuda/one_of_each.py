"""One launch or two of every kind of kernel: what a sanitizer, which is slow, can run.

Run as ``compute-sanitizer python -m tests.pipeline.devices.cuda.one_of_each`` with LAYERSTREAM_KERNELS=gpu.
"""

from typing import Any

import numpy as np

from pipeline.devices.cuda.lowering import geometries, lower
from pipeline.devices.cuda.scope import ConvolutionSettings
from tests.pipeline.devices.cuda.lowering.graphs import graph, node
from tests.pipeline.devices.cuda.lowering.lowered import agree, execute, reference, same
from tests.pipeline.devices.nodes import numbers

_CONVOLUTIONS: tuple[tuple[tuple[int, ...], tuple[int, ...], dict[str, Any]], ...] = (
    ((1, 40, 9, 11), (70, 40, 1, 1), {}),
    ((1, 24, 13, 9), (36, 24, 3, 3), {"pads": [1, 1, 1, 1]}),
    ((2, 12, 15, 14), (10, 6, 5, 3), {"group": 2, "strides": [2, 1], "pads": [2, 1, 2, 1]}),
    ((1, 16, 12, 12), (16, 1, 3, 3), {"group": 16, "pads": [1, 1, 1, 1]}),
)


def convolutions() -> int:
    """Run convolutions by every algorithm that fits; return how many."""
    count = 0
    for x, w, attributes in _CONVOLUTIONS:
        inputs = [numbers(*x), numbers(*w, seed=1) / 8, numbers(w[0], seed=2)]
        piece = graph(
            [node("Conv", "x0 x1 x2", "t0", **attributes), node("Relu", "t0", "y0")], inputs
        )
        expected = reference(piece, inputs)
        for precision, room in (("fp32", 1e-3), ("fp16", 5e-2)):
            settings = ConvolutionSettings(8, precision)  # type: ignore[arg-type]
            for key, names in geometries(piece, settings).items():
                for name in names:
                    chosen = ConvolutionSettings(8, precision, {key: name})  # type: ignore[arg-type]
                    results = execute(lower(piece, chosen), inputs, expected)
                    assert np.abs(results[0] - expected[0]).max() < room * np.abs(expected[0]).max()
                    count += 1
    return count


def others() -> int:
    """Run one of the other kernels each; return how many."""
    x, rows = numbers(1, 6, 9, 8), numbers(3, 50)
    agree("Gemm", [rows, numbers(20, 50), numbers(20)], {"transB": 1})
    agree("MatMul", [numbers(2, 17, 23), numbers(2, 23, 19)])
    agree("MaxPool", [x], {"kernel_shape": [3, 3], "strides": [2, 2], "pads": [1, 1, 1, 1]})
    agree("AveragePool", [x], {"kernel_shape": [2, 3]})
    agree("GlobalAveragePool", [x])
    agree("Softmax", [rows], {"axis": -1})
    agree("Transpose", [x], {"perm": [0, 2, 3, 1]})
    agree("Mul", [x, numbers(1, 6, 1, 1)])
    agree("ReduceMean", [x], {"axes": [1], "keepdims": 1}, opset=13)
    agree("InstanceNormalization", [x, numbers(6), numbers(6)])
    same(graph([node("Neg", "x0", "t0"), node("Exp", "t0", "y0")], [x]), [x])
    return 11


if __name__ == "__main__":
    print(convolutions() + others(), "programs agree")
