"""Winograd's convolution: right, in slabs, and with bits that do not depend on the chunk."""

from unittest import mock

import pytest
from hypothesis import given
from hypothesis import strategies as st

from models.network.operators.reading import Convolution
from pipeline.devices.cuda.operators.convolutions import launching as module
from pipeline.devices.cuda.operators.convolutions.algorithms import Algorithm
from tests.examples import over
from tests.pipeline.devices.cuda.operators.convolving import (
    EPSILON,
    Problem,
    check,
    launches,
    make_problem,
    make_shape,
    problems,
    quick,
    run,
)
from tests.pipeline.devices.cuda.space import Kernels

WINOGRAD = Algorithm("winograd")
# The transforms add up to 16 inputs for a product, and the bound is on products of the windows.
ROOM = 64.0


@st.composite
def three(draw: st.DrawFn) -> Convolution:
    """3x3, stride 1."""
    return make_shape(
        draw(st.integers(1, 20)),
        (draw(st.integers(3, 21)), draw(st.integers(3, 21))),
        draw(st.integers(1, 70)),
        (3, 3),
        pads=(draw(st.integers(0, 2)), draw(st.integers(0, 2))),
        batch=draw(st.integers(1, 2)),
        more=draw(st.integers(0, 1)),
    )


THREE = three()


@quick
@given(problems(THREE))
def test_winograd(kernels: Kernels, problem: Problem) -> None:
    check(problem, run(kernels, problem, WINOGRAD), EPSILON, ROOM)


@quick
@given(st.data(), problems(THREE))
def test_bits_know_neither_chunk_nor_slab(
    kernels: Kernels, data: st.DataObject, problem: Problem
) -> None:
    whole = run(kernels, problem, WINOGRAD)
    first = data.draw(st.integers(0, problem.it.filters - 1))
    last = data.draw(st.integers(first + 1, problem.it.filters))
    with mock.patch.multiple(module, _SLAB_FLOATS=0, _MIN_SLAB_TILES=data.draw(st.integers(1, 64))):
        part = run(kernels, problem.chunk(first, last), WINOGRAD)
    assert part.tobytes() == whole[:, first:last].tobytes()


@over(
    "change",
    [{"strides": (2, 1)}, {"dilations": (1, 2)}, {"groups": 2}, {"kernel": (3, 2)}],
)
def test_only_3x3(change: dict[str, tuple[int, int]]) -> None:
    arguments = {"kernel": (3, 3), **change}
    problem = make_problem(make_shape(4, (9, 9), 4, **arguments))  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="cannot compute"):
        launches(problem, WINOGRAD)
