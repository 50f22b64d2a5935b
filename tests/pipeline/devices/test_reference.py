"""The reference device: what it refuses, and memory that inputs and outputs share."""

from typing import Any

import numpy as np
import pytest

from pipeline.devices.base import DeviceError, KernelError
from tests.examples import over
from tests.oracle.device import ReferenceDevice
from tests.pipeline.devices.nodes import MICROSOFT, NCHWC, launch, numbers, piece

X = numbers(2, 6, 5, 7)


def test_output_may_be_the_memory_of_an_input() -> None:
    graph = piece(
        "FusedConv",
        inputs := [X[:1], numbers(6, 6, 1, 1), numbers(6), X[:1]],
        {},
        domain=MICROSOFT,
        weights=True,
    )
    x, weight, bias, addend = (array.copy() for array in inputs)
    apart = np.zeros_like(addend)
    launch(graph, [x, weight, bias, addend], [apart])
    launch(graph, [x, weight, bias, addend], [addend])
    np.testing.assert_array_equal(addend, apart)


def test_outputs_that_are_views_of_overwritten_inputs() -> None:
    """Both halves of x are views; writing the first one must not change the second."""
    x = np.arange(4, dtype=np.float32)
    graph = piece("Split", [x], {"axis": 0}, outputs=2)
    outputs = [x[2:], np.zeros(2, np.float32)]
    launch(graph, [x], outputs)
    np.testing.assert_array_equal(np.concatenate(outputs), [0, 1, 2, 3])


def test_infinities_are_results() -> None:
    result = np.zeros(2, np.float32)
    launch(piece("Exp", [result], {}), [np.array([1000, -1000], np.float32)], [result])
    np.testing.assert_array_equal(result, [np.inf, 0])


@over(
    "operator, options, message",
    [
        ("Relu6", {}, "Relu6"),
        ("Gelu", {"domain": MICROSOFT}, r"com\.microsoft\.Gelu"),
        ("MaxPool", {"outputs": 2}, "MaxPool.*first output"),
        ("Resize", {"attributes": {"mode": "cubic"}}, "Resize: mode 'cubic'"),
        ("Conv", {"domain": NCHWC, "attributes": {"activation": "Shrink"}}, "nchwc.Conv.*'Shrink'"),
    ],
)
def test_unsupported_operators_are_refused_at_load(
    operator: str, options: dict[str, Any], message: str
) -> None:
    graph = piece(operator, [X], options.pop("attributes", {}), **options)
    with pytest.raises(DeviceError, match=message):
        ReferenceDevice().load(graph)


def test_damaged_graphs_are_refused_at_load() -> None:
    with pytest.raises(DeviceError, match="not an ONNX model"):
        ReferenceDevice().load(b"\xff\xff\xff")
    with pytest.raises(DeviceError, match="Relu: 'x1' is computed nowhere"):
        ReferenceDevice().load(piece("Relu", [X], {}).replace(b"x0", b"x1", 1))


def test_misfit_is_a_kernel_error() -> None:
    with pytest.raises(KernelError, match=r"MatMul: .*mismatch"):
        launch(piece("MatMul", [numbers(2, 3), numbers(2, 3)], {}), [numbers(2, 3)], [X])
    with pytest.raises(KernelError, match=r"output 'y0' is float32\[2, 6, 5, 7\], its memory"):
        launch(piece("Relu", [X], {}), [X], [X[:1].copy()])


def test_same_bytes_give_the_same_kernel() -> None:
    device = ReferenceDevice()
    graph = piece("Relu", [X], {})
    kernel = device.load(graph)
    assert device.load(bytes(bytearray(graph))) is kernel
