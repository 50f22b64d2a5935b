"""Where tensors lie, and how they are divided, changes no bit and touches no other byte."""

import ctypes
import functools
import mmap
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from models.packs.records.pieces import ElementStep
from pipeline.devices.elementwise.one_pass import OnePass
from pipeline.devices.elementwise.programs import OPERATORS
from tests.examples import examples, over
from tests.pipeline.devices.elementwise.chains import (
    Floats,
    bound,
    computed,
    library,
    native,
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


def _chain(threads: int, x: Floats, y: Floats) -> None:
    program = native(
        ElementStep(kind="mish", reads=(0,), numbers=(1.0,)), ElementStep(kind="add", reads=(1, 0))
    )
    bound(program, [x, y], threads)()


def test_threads_change_no_bit() -> None:
    x = np.random.default_rng(2).normal(0, 3, 200_001).astype(np.float32)
    expected = np.empty_like(x)
    _chain(1, x, expected)
    for threads in (2, 3, 5):
        library().open_threads(threads)
        try:
            result = np.empty_like(x)
            for _ in range(5):
                _chain(threads, x, result)
            np.testing.assert_array_equal(result.view(np.uint32), expected.view(np.uint32))
        finally:
            library().close_threads(threads)


def test_callers_at_the_same_time_do_not_meet() -> None:
    xs = [np.full(150_000, number, np.float32) for number in range(4)]
    ys = [np.empty_like(x) for x in xs]
    library().open_threads(3)
    try:

        def call(number: int) -> None:
            for _ in range(10):
                _chain(3, xs[number], ys[number])

        callers = [threading.Thread(target=call, args=(number,)) for number in range(4)]
        for caller in callers:
            caller.start()
        for caller in callers:
            caller.join()
    finally:
        library().close_threads(3)
    for x, y in zip(xs, ys, strict=True):
        alone = np.empty_like(x)
        _chain(1, x, alone)
        np.testing.assert_array_equal(y, alone)


def _threads() -> int:
    return len(list(Path("/proc/self/task").iterdir()))


def test_threads_end_when_nobody_asks_for_them() -> None:
    before = _threads()
    library().open_threads(4)
    library().open_threads(6)
    assert _threads() >= before + 3
    library().close_threads(6)
    library().close_threads(4)
    assert _threads() <= before


def test_a_child_of_fork_computes_alone() -> None:
    x = np.random.default_rng(3).normal(0, 3, 100_000).astype(np.float32)
    expected = np.empty_like(x)
    library().open_threads(3)
    try:
        _chain(3, x, expected)
        child = os.fork()
        if not child:  # pragma: no cover  its end is what is looked at
            result = np.empty_like(x)
            _chain(3, x, result)
            os._exit(0 if (result == expected).all() else 1)
        assert os.waitpid(child, 0)[1] == 0
    finally:
        library().close_threads(3)


@pytest.mark.parametrize(("shape", "plane", "width"), [((6, 35), 35, 1), ((3, 50, 8), 400, 8)])
def test_one_number_for_each_channel(shape: tuple[int, ...], plane: int, width: int) -> None:
    rng = np.random.default_rng(4)
    x = rng.normal(0, 1, (700, *shape)).astype(np.float32)
    factors = rng.normal(0, 1, (700 * shape[0], width)).astype(np.float32)
    result = np.empty_like(x)
    places = [(factors.ctypes.data, plane, width), (result.ctypes.data, 0, 0)]
    placed = [(x.ctypes.data, 0, 0), *places]
    library().bind(only("multiply", 2), placed, x.size, 1)()
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
    one_pass = OnePass(library(), 1)
    try:
        launch = one_pass.bind(only("multiply", 2), [x, factors, result])
        assert launch is not None
        launch()
    finally:
        one_pass.close()
    np.testing.assert_array_equal(result, x * factors)
