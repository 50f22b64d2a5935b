"""Where tensors lie changes no bit, and no other byte is touched."""

import ctypes
import functools
import mmap
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.devices.elementwise.one_pass import OnePass
from pipeline.devices.interface.native import OPERATORS
from tests.examples import examples, over
from tests.pipeline.devices.elementwise.chains import (
    Floats,
    bound,
    computed,
    library,
    needs_library,
    only,
)

pytestmark = needs_library

_PAGE = mmap.PAGESIZE
_MOST = 3 * _PAGE // 4
_TWO = {"add", "subtract", "multiply", "divide"}
_X = np.random.default_rng(1).normal(0, 4, _MOST).astype(np.float32)


@functools.cache
def _whole(operator: str) -> Floats:
    others = [_X[::-1].copy()] if operator in _TWO else []
    return computed(operator, _X, *others, p=0.3, q=0.5)


@contextmanager
def fenced() -> Iterator[memoryview]:
    """Yield three pages between two that may not be read or written."""
    whole = mmap.mmap(-1, 5 * _PAGE)
    view = memoryview(whole)
    start = np.frombuffer(view, np.uint8).ctypes.data
    protect = ctypes.CDLL(None, use_errno=True).mprotect
    for page, rights in ((0, 0), (4, 0)):
        assert protect(ctypes.c_void_p(start + page * _PAGE), _PAGE, rights) == 0
    try:
        yield view[_PAGE : 4 * _PAGE]
    finally:
        for page in (0, 4):
            protect(ctypes.c_void_p(start + page * _PAGE), _PAGE, 3)


@examples(10, many=500, deadline=None)
@given(
    st.sampled_from(OPERATORS),
    st.one_of(st.integers(1, 70), st.integers(1, _MOST)),
    st.booleans(),
    st.booleans(),
    st.integers(0, 3),
)
def test_any_size_anywhere_in_place_or_not(
    operator: str, size: int, at_end: bool, in_place: bool, shift: int
) -> None:
    with fenced() as first, fenced() as second:
        pages = [np.frombuffer(each, np.uint8) for each in (first, second)]
        for each in pages:
            each[:] = 0xAB
        start = 3 * _PAGE - 4 * size if at_end else min(shift, 3 * _PAGE - 4 * size)
        x, y = (each[start : start + 4 * size].view(np.float32) for each in pages)
        x[:] = _X[:size]
        y = x if in_place else y
        other = _X[::-1].copy()[:size]
        operands = [x, other] if operator in _TWO else [x]
        bound(only(operator, len(operands), 0.3, 0.5), [*operands, y])()
        np.testing.assert_array_equal(y.view(np.uint32), _whole(operator)[:size].view(np.uint32))
        for each in pages:
            assert (each[:start] == 0xAB).all()
            assert (each[start + 4 * size :] == 0xAB).all()


@pytest.mark.parametrize(("shape", "plane", "width"), [((6, 35), 35, 1), ((3, 50, 8), 400, 8)])
def test_one_number_for_each_channel(shape: tuple[int, ...], plane: int, width: int) -> None:
    rng = np.random.default_rng(4)
    x = rng.normal(0, 1, (700, *shape)).astype(np.float32)
    factors = rng.normal(0, 1, (700 * shape[0], width)).astype(np.float32)
    result = np.empty_like(x)
    places = [(factors.ctypes.data, plane, width), (result.ctypes.data, 0, 0)]
    placed = [(x.ctypes.data, 0, 0), *places]
    library().bind(only("multiply", 2), placed, x.size)()
    by_channel = factors.reshape(700, shape[0], *[1] * (len(shape) - 2), width)
    np.testing.assert_array_equal(result, x * by_channel)


@over(
    "other, whole",
    [
        ((4,), (1, 4)),
        ((1,), (1, 1)),
        ((1,), (2, 4)),
        ((5,), (2, 5)),
        ((3, 1, 1), (1, 3, 2, 5)),
        ((1, 3, 1, 1), (1, 3, 2, 5)),
        ((2, 1, 5), (2, 3, 5)),
    ],
)
def test_shapes_of_fewer_axes_mean_what_they_mean_to_numpy(
    other: tuple[int, ...], whole: tuple[int, ...]
) -> None:
    rng = np.random.default_rng(5)
    x, factors = (rng.normal(0, 1, shape).astype(np.float32) for shape in (whole, other))
    result = np.empty_like(x)
    launch = OnePass(library()).bind(only("multiply", 2), [x, factors, result])
    assert launch is not None
    launch()
    np.testing.assert_array_equal(result, x * factors)
