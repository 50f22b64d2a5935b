"""Convolutions on tensor cores, whose place the host build takes."""

from dataclasses import replace

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from models.network.operators.reading import Convolution
from pipeline.devices.cuda.operators.convolutions.algorithms import Algorithm
from pipeline.devices.cuda.operators.convolutions.direct import HALF_TILES, Tile
from tests.examples import examples
from tests.pipeline.devices.cuda.operators.convolving import (
    EPSILON,
    HALF_EPSILON,
    Problem,
    check,
    make_problem,
    make_shape,
    problems,
    quick,
    run,
)
from tests.pipeline.devices.cuda.space import Kernels

HALF = Algorithm("half")
few = examples(15, many=400, parent=quick)
tiles = st.sampled_from(HALF_TILES)


def rounded(problem: Problem) -> Problem:
    """With factors that float16 holds, so that only sums are rounded."""
    return replace(
        problem,
        x=problem.x.astype(np.float16).astype(np.float32),
        w=problem.w.astype(np.float16).astype(np.float32),
    )


@few
@given(problems(), tiles)
def test_half(kernels: Kernels, problem: Problem, tile: Tile) -> None:
    exact = rounded(problem)
    result = run(kernels, exact, HALF, tile=tile)
    check(exact, result, EPSILON)
    check(problem, run(kernels, problem, HALF, tile=tile), HALF_EPSILON)


CHUNKED = [
    make_shape(20, (7, 11), 100, (3, 3), pads=(1, 1)),
    make_shape(33, (8, 9), 100, (1, 1)),
    make_shape(5, (9, 9), 100, (5, 4), strides=(2, 1), pads=(2, 2)),
]


@few
@given(st.data(), st.sampled_from(CHUNKED), tiles, tiles)
def test_bits_know_neither_chunk_nor_tile(
    kernels: Kernels, data: st.DataObject, shape: Convolution, tile: Tile, other: Tile
) -> None:
    problem = data.draw(problems(st.just(shape)))
    first = data.draw(st.integers(0, shape.filters - 1))
    last = data.draw(st.integers(first + 1, shape.filters))
    whole = run(kernels, problem, HALF, tile=tile)
    misaligned = data.draw(st.tuples(*[st.integers(0, 3)] * 5))
    part = run(kernels, problem.chunk(first, last), HALF, tile=other, misaligned=misaligned)
    assert part.tobytes() == whole[:, first:last].tobytes()


def test_factors_are_rounded_to_nearest(kernels: Kernels) -> None:
    """As NumPy rounds: ties, subnormal numbers and infinity too."""
    patterns = np.arange(0, 1 << 16, dtype=np.uint16).view(np.float16).astype(np.float32)
    exact = patterns[np.isfinite(patterns)]
    near = np.nextafter(exact, np.float32(np.inf)), np.nextafter(exact, np.float32(-np.inf))
    halves = (exact[1:] + exact[:-1]) / 2
    values = np.concatenate([exact, *near, halves, [65519.0, 65520.0, -1e9]]).astype(np.float32)
    values = values[:: max(1, len(values) // 20000)]
    problem = make_problem(make_shape(1, (1, len(values)), 1))
    problem = replace(
        problem,
        x=values.reshape(1, 1, 1, -1),
        w=np.ones((1, 1, 1, 1), np.float32),
    )
    with np.errstate(over="ignore"):
        expected = values.astype(np.float16).astype(np.float32)
    np.testing.assert_array_equal(run(kernels, problem, HALF).reshape(-1), expected)
