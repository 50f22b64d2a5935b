"""Convolution kernels: right, and with bits that depend neither on the tile nor on the chunk."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from models.network.activations import Activation, Kind
from models.network.node import UnsuitedError
from models.network.operators.reading import Convolution
from pipeline.devices.cuda.call import DevicePointer
from pipeline.devices.cuda.operators.convolutions.algorithms import (
    Algorithm,
    candidates,
    default_algorithm,
)
from pipeline.devices.cuda.operators.convolutions.direct import TILES, Tile, best_tile
from pipeline.devices.interface.cuda import ACTIVATIONS
from tests.examples import over
from tests.oracle.functions import activate
from tests.pipeline.devices.cuda.guarded_memory import HostMemory
from tests.pipeline.devices.cuda.operators.convolving import (
    EPSILON,
    HALF_EPSILON,
    Array,
    Problem,
    check,
    launches,
    make_problem,
    make_shape,
    problems,
    quick,
    run,
    shapes,
    value,
    with_filters,
)
from tests.pipeline.devices.cuda.space import Kernels

DIRECT = Algorithm("direct")
tiles = st.sampled_from(TILES)


@quick
@given(problems(), tiles)
def test_direct(kernels: Kernels, problem: Problem, tile: Tile) -> None:
    check(problem, run(kernels, problem, tile=tile))


@quick
@given(problems(), st.integers(1, 9), tiles)
def test_split(kernels: Kernels, problem: Problem, splits: int, tile: Tile) -> None:
    check(problem, run(kernels, problem, Algorithm("split", splits), tile=tile))


@quick
@given(st.data(), shapes())
def test_depthwise(kernels: Kernels, data: st.DataObject, shape: Convolution) -> None:
    channels, each = data.draw(st.integers(2, 6)), data.draw(st.integers(1, 3))
    windows = shape.windows
    size = data.draw(st.sampled_from([(3, 3), (5, 5), windows.kernel]))
    stride = data.draw(st.sampled_from([(1, 1), (2, 2), windows.strides]))
    dilations = data.draw(st.sampled_from([(1, 1), windows.dilations]))
    extents = zip(windows.size, size, dilations, strict=True)
    height, width = (max(axis, d * (extent - 1) + 1) for axis, extent, d in extents)
    drawn = make_shape(
        channels,
        (height, width),
        channels * each,
        size,
        strides=stride,
        pads=windows.before,
        dilations=dilations,
        batch=shape.x.shape[0],
        groups=channels,
    )
    problem = data.draw(problems(st.just(drawn)))
    check(problem, run(kernels, problem, Algorithm("depthwise")))


@quick
@given(problems(), st.sampled_from(["cublas", "im2col"]))
def test_libraries_products(kernels: Kernels, problem: Problem, kind: str) -> None:
    algorithm = Algorithm("cublas" if kind == "cublas" and problem.it.is_pointwise else "im2col")
    check(problem, run(kernels, problem, algorithm))


CHUNKED = [
    make_shape(20, (9, 11), 150, (3, 3), pads=(1, 1)),
    make_shape(33, (10, 13), 140, (1, 1)),
    make_shape(32, (8, 16), 140, (1, 1)),
    make_shape(5, (12, 9), 150, (5, 4), strides=(2, 1), pads=(2, 2)),
]


@quick
@given(st.data(), st.sampled_from(CHUNKED), tiles, tiles, st.sampled_from([1, 3]))
def test_bits_know_neither_chunk_nor_tile(
    kernels: Kernels,
    data: st.DataObject,
    shape: Convolution,
    tile: Tile,
    other: Tile,
    splits: int,
) -> None:
    problem = data.draw(problems(st.just(shape)))
    first = data.draw(st.integers(0, shape.filters - 1))
    last = data.draw(st.integers(first + 1, shape.filters))
    algorithm = Algorithm("split", splits) if splits > 1 else DIRECT
    whole = run(kernels, problem, algorithm, tile=tile)
    misaligned = data.draw(st.tuples(*[st.integers(0, 3)] * 5))
    chunk = problem.chunk(first, last)
    part = run(kernels, chunk, algorithm, tile=other, misaligned=misaligned)
    assert part.tobytes() == whole[:, first:last].tobytes()


DEEP = [
    make_shape(130, (3, 5), 5, (3, 3), pads=(1, 1)),
    make_shape(57, (6, 5), 5, (5, 4), strides=(2, 1), pads=(2, 2)),
    make_shape(1100, (4, 4), 5),
    make_shape(1100, (3, 5), 5),
]


@pytest.mark.parametrize("splits", [1, 3])
@pytest.mark.parametrize("shape", DEEP, ids=["3x3", "any", "fours", "ones"])
def test_deep_sums(kernels: Kernels, shape: Convolution, splits: int) -> None:
    """More numbers k than the tables of places hold at once."""
    problem = make_problem(shape)
    algorithm = Algorithm("split", splits) if splits > 1 else DIRECT
    results = [run(kernels, problem, algorithm, tile=tile) for tile in TILES]
    check(problem, results[0])
    assert {result.tobytes() for result in results} == {results[0].tobytes()}


@pytest.mark.parametrize(
    "bias", [None, np.full(3, -0.0, np.float32)], ids=["without", "minus-zero"]
)
def test_bits_of_sums_that_underflow(kernels: Kernels, bias: Array | None) -> None:
    """A sum of -0 becomes +0 wherever a tile adds zeros of padding behind it, so it does elsewhere."""
    shape = make_shape(8, (1, 3), 3)
    tiny = np.full((1, 8, 1, 3), 1e-30, np.float32)
    if bias is not None:
        shape = replace(shape, bias=value("bias", 3))
    problem = Problem(shape, tiny, np.full((3, 8, 1, 1), -1e-30, np.float32), bias)
    results = {run(kernels, problem, tile=tile).tobytes() for tile in TILES}
    assert results == {np.zeros((1, 3, 1, 3), np.float32).tobytes()}


@over("algorithm", [DIRECT, Algorithm("split", 2), Algorithm("half")])
def test_the_addend_may_be_the_output(kernels: Kernels, algorithm: Algorithm) -> None:
    problem = make_problem(make_shape(8, (5, 6), 70, (3, 3), pads=(1, 1)), parts="addend")
    assert problem.addend is not None
    y, addend = DevicePointer("output", 0), DevicePointer("input", 3)
    calls, n_bytes = launches(problem, algorithm)
    moved = [
        replace(call, arguments=tuple(y if item == addend else item for item in call.arguments))
        for call in calls
    ]
    memory = HostMemory([problem.x, problem.w, None, None], [problem.addend.shape], n_bytes)
    memory.outputs[0][:] = problem.addend
    memory.run(kernels, moved)
    assert memory.outputs[0].tobytes() == run(kernels, problem, algorithm).tobytes()


@over("kind", [kind for kind in ACTIVATIONS if kind != "none"])
def test_activations(kernels: Kernels, kind: Kind) -> None:
    """To a few units in the last place, far out too."""
    values = np.concatenate(
        [np.linspace(-12, 12, 4001), [-1e30, -1e4, -88.0, -30.0, 0.0, 30.0, 88.0, 1e4, 1e30]]
    ).astype(np.float32)
    if kind == "exp":
        values = values[values < 80]  # float32 ends at exp(88.7)
    if kind in {"log", "reciprocal", "sqrt"}:
        values = values[values > 0]
    it = make_shape(1, (1, len(values)), 1)
    identity = np.ones((1, 1, 1, 1), np.float32)
    parameters = {"clip": (-1.0, 2.0), "mish": (-1.0, 0.0)}.get(kind, (0.3, 0.6))
    activation = Activation(kind, *parameters)
    problem = Problem(replace(it, activation=activation), values.reshape(1, 1, 1, -1), identity)
    result = run(kernels, problem).reshape(-1)
    with np.errstate(over="ignore"):
        expected = activate(values.astype(np.float64), activation)
    # Hard ones cancel at their edges.
    hard = {"hard_sigmoid", "hard_swish"}
    np.testing.assert_allclose(result, expected, 2e-6, atol=1e-6 if kind in hard else 1e-12)


@given(shapes(), st.integers(1, 200), st.integers(1, 150))
@quick
def test_choice_does_not_see_the_filters(
    shape: Convolution, multiprocessors: int, times: int
) -> None:
    other = with_filters(shape, shape.groups * times)
    chosen = default_algorithm(shape, multiprocessors)
    assert default_algorithm(other, multiprocessors) == chosen
    assert candidates(other, multiprocessors) == candidates(shape, multiprocessors)
    assert chosen in candidates(shape, multiprocessors)


@quick
@given(problems(), st.integers(1, 40))
def test_candidates_work(kernels: Kernels, problem: Problem, multiprocessors: int) -> None:
    for algorithm in candidates(problem.it, multiprocessors):
        assert Algorithm.parse(str(algorithm)) == algorithm
        unit = HALF_EPSILON if algorithm.kind == "half" else EPSILON
        check(problem, run(kernels, problem, algorithm), unit, room=8.0)


@over("text", ["", "fast", "direct:2", "split", "split:0", "split:x", "split:02"])
def test_no_such_algorithm(text: str) -> None:
    with pytest.raises(ValueError, match=r"no algorithm|invalid literal"):
        Algorithm.parse(text)


def test_splits_where_pixels_are_few() -> None:
    late = make_shape(512, (7, 7), 512, (3, 3), pads=(1, 1))
    early = make_shape(64, (112, 112), 64, (3, 3), pads=(1, 1))
    assert default_algorithm(late, 8) == Algorithm("split", 6)
    assert default_algorithm(early, 8) == DIRECT


@over(
    "shape",
    [
        make_shape(512, (19, 19), 512, (3, 3), pads=(1, 1)),
        make_shape(512, (7, 7), 512, (3, 3), pads=(1, 1)),
        make_shape(1024, (14, 14), 256),
        make_shape(2048, (7, 7), 512),
    ],
    ids=["19", "7", "14-1x1", "7-1x1"],
)
def test_few_pixels_fill_many_multiprocessors(shape: Convolution) -> None:
    splits = default_algorithm(shape, 132).splits
    assert best_tile(TILES, shape, 132, splits).blocks(shape) * splits >= 120


def test_large_tiles_for_large_layers() -> None:
    large = make_shape(256, (64, 64), 256, (3, 3), pads=(1, 1))
    small = make_shape(256, (7, 7), 64, (3, 3), pads=(1, 1))
    assert best_tile(TILES, large, 8).name == "convolve_128x128"
    assert best_tile(TILES, small, 8).columns == 32


@pytest.mark.parametrize("size", [{"channels": 1 << 30}, {"kernel": (1 << 12, 1 << 12)}], ids=str)
def test_what_kernels_cannot_count(size: dict[str, Any]) -> None:
    plain: dict[str, Any] = {"channels": 4, "size": (1 << 12, 1 << 12), "kernel": (3, 3)}
    problem = Problem(make_shape(filters=4, **(plain | size)), np.empty(0), np.empty(0))
    with pytest.raises(UnsuitedError, match="large"):
        launches(problem, DIRECT)
