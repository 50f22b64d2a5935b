"""Quantised layers by the native library are exact sums, rounded once, whatever the memory and threads.

And so are ONNX Runtime's, where the processor has dot products or no weight is too large.
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace

import numpy as np
import pytest
from onnx import helper

from models.network.operators.quantised import MAX_CONCATENATED, MAX_LAYERS, QuantisedTask
from models.packs.target import host_target
from pipeline.devices.integers.native_layers import fitted, taken_bytes
from tests.examples import over
from tests.pipeline.devices.elementwise.chains import library, needs_library
from tests.pipeline.devices.integers.exact import computed
from tests.pipeline.devices.integers.quantised import Network

pytestmark = needs_library

SMALL, LARGE = 1, 1 << 20
# Of 17 kinds: 51 networks, and 85 more.
SEEDS = [range(3), pytest.param(range(3, 8), marks=pytest.mark.slow)]


def _begun(seed: int, **given: object) -> tuple[Network, int, int]:
    """Return a network of random size, its channels, and a number of filters."""
    random = np.random.default_rng(seed)
    channels, filters = int(random.integers(2, 40)), int(random.integers(1, 50))
    height, width = map(int, random.integers(6, 19, 2))
    kinds = [("uint8", "int8"), ("int8", "int8"), ("uint8", "uint8")]
    dtype, weights = kinds[seed % len(kinds)]
    network = Network(
        seed,
        (1, height, width, channels),
        dtype,
        weights,
        largest_weight=127 + seed % 5 // 4,
        apart=seed % 2 == 0,
        zeros=seed % 4 > 1,
        **given,  # type: ignore[arg-type]
    )
    return network, channels, filters


def _point(seed: int) -> Network:
    network, _, filters = _begun(seed)
    return network.conv(filters)


def _window(seed: int) -> Network:
    network, _, filters = _begun(seed)
    return network.conv(filters, 3, 1 + seed % 3, 1, 1 + seed % 2)


def _padded(seed: int) -> Network:
    """By ``auto_pad``: with a stride of 2 not as much in front as behind."""
    network, _, filters = _begun(seed)
    (node,) = network.conv(filters, 3, 1 + seed % 2, 1).nodes
    kept = [item for item in node.attribute if item.name != "pads"]
    del node.attribute[:]
    node.attribute.extend([*kept, helper.make_attribute("auto_pad", "SAME_UPPER")])
    return network


def _each(seed: int) -> Network:
    network, channels, _ = _begun(seed)
    return network.conv(channels, 3 + 2 * (seed % 2), 1 + seed % 2, 1, group=channels)


def _product(seed: int) -> Network:
    network, channels, filters = _begun(seed)
    return Network(seed, (network.shape[1], channels)).product(filters, turned=seed % 2 == 0)


def _average(seed: int) -> Network:
    network, _, _ = _begun(seed)
    return network.average()


def _bottleneck(seed: int) -> Network:
    network, _, filters = _begun(seed)
    return network.conv(70).conv(70, 3, 1 + seed % 2, 1, group=70).conv(filters)


def _uneven_bands(seed: int) -> Network:
    """Of few filters: parts share pixels, and the last band has fewer."""
    network = Network(seed, (1, 31 + seed, 24, 16))
    return network.conv(70).conv(70, 3, 1, 1, group=70).conv(9)


def _residual(seed: int) -> Network:
    network, channels, _ = _begun(seed)
    inner = network.conv(33).conv(33, 3, 1, 1, group=33).conv(channels)
    return inner.plus(first=seed % 2 == 0)


def _picture(seed: int) -> Network:
    network, _, filters = _begun(seed)
    return _cut(network).conv(filters, 3, 2, 1)


def _picture_and_bottleneck(seed: int) -> Network:
    network, _, filters = _begun(seed)
    return _cut(network).conv(24, 3, 2, 1).conv(24, 3, 1, 1, group=24).conv(filters)


def _pooled(seed: int) -> Network:
    network, _, filters = _begun(seed)
    made = network.conv(filters, 1 + 2 * (seed % 2), 1, 1)
    return made.pool(2 + seed % 2, 1 + seed % 3, seed % 2)


def _pooled_picture(seed: int) -> Network:
    network, _, filters = _begun(seed)
    return _cut(network).conv(filters, 3, 1, 1).pool(3, 2, seed % 2)


def _looked_up(seed: int) -> Network:
    return (_point, _window, _product)[seed % 3](seed).table()


def _looked_up_maxima(seed: int) -> Network:
    return (_pooled, _pooled_picture)[seed % 2](seed).table()


def _added(seed: int) -> Network:
    made = _window(seed)
    return (made.table() if seed % 2 else made).plus(first=seed % 4 > 1)


def _joined(seed: int) -> Network:
    network, _, filters = _begun(seed)
    return network.joined(1 + seed).conv(filters, 1 + 2 * (seed % 2), 1 + seed % 3, seed % 2)


def _cut(network: Network) -> Network:
    """Return a network that reads a rectangle of an image, which is a little larger."""
    _, height, width, _ = network.shape
    planes = (1, 3, height + 9, width + 8)
    return network.picture(planes, slice(2, height + 5), slice(1, width + 4))


@pytest.fixture(params=[True, False], ids=["dot products", "without"])
def _products(request: pytest.FixtureRequest) -> Iterator[None]:
    library().use_dot_products(request.param)
    yield
    library().use_dot_products(True)


@pytest.mark.usefixtures("_products")
@pytest.mark.parametrize(
    "kind",
    [
        *(_point, _window, _padded, _each, _product, _average),
        *(_bottleneck, _uneven_bands, _residual, _picture, _picture_and_bottleneck),
        *(_pooled, _pooled_picture, _looked_up, _looked_up_maxima, _added, _joined),
    ],
)
@pytest.mark.parametrize("seeds", SEEDS, ids=str)
def test_sums_are_exact_and_rounded_once(
    kind: Callable[[int], Network], seeds: Iterable[int]
) -> None:
    for seed in seeds:
        network = kind(seed)
        expected = computed(network.model(), network.given)
        if seed == 0 and kind is not _average:
            assert len(np.unique(expected)) > 20  # or all would be the largest byte
        if network.largest_weight <= host_target().exact_weights:
            assert np.array_equal(network.expected(), expected), seed
        for threads, workspace in ((1, SMALL), (2, 2 << 14), (3, LARGE)):
            assert np.array_equal(network.computed(threads, workspace), expected), (seed, threads)


@pytest.mark.parametrize("threads", [1, 2])
def test_a_sum_may_lie_over_what_is_added(threads: int) -> None:
    for seed in range(4):
        network = _added(seed)
        expected = computed(network.model(), network.given)
        assert np.array_equal(network.computed(threads, LARGE, over="z"), expected), seed


# Limits of the kernels, on both sides.


@over("tensors", [MAX_CONCATENATED, MAX_CONCATENATED + 1])
def test_as_many_concat_parents_as_the_library_reads(tensors: int) -> None:
    network = Network(3, (1, 7, 8, 5)).joined(*range(2, tensors)).conv(9, 3, 1, 1)
    if tensors > MAX_CONCATENATED:
        assert network.found() is None
    else:
        expected = computed(network.model(), network.given)
        assert np.array_equal(network.computed(2, SMALL), expected)


def test_as_many_layers_as_the_library_runs() -> None:
    task = _found(_bottleneck(0))
    assert len(task.layers) == MAX_LAYERS
    assert not task.fault()
    longer = replace(task, layers=(*task.layers, task.layers[-1]))
    assert longer.fault() == f"layers: {MAX_LAYERS + 1}, of {MAX_LAYERS} at most"


@over("rows", [16, 17])
def test_windows_of_as_many_rows_as_are_read_without_a_copy_and_of_more(rows: int) -> None:
    """MOST_RUNS of kernels/integers/rows.h."""
    network = Network(rows, (1, 19, 20, 3)).conv(6, rows, 1, 2)
    expected = computed(network.model(), network.given)
    assert np.array_equal(network.computed(2, SMALL), expected)


@pytest.mark.usefixtures("_products")
@pytest.mark.parametrize("shape", [(1, 19, 20, 300), (1, 33, 34, 300)], ids=["filters", "pixels"])
def test_a_part_keeps_few_packed_filters_whatever_memory_there_is(shape: tuple[int, ...]) -> None:
    network = Network(0, shape).conv(250)
    task = fitted(_found(network), library(), 2, LARGE)
    assert task.n_parts == 2
    assert task.n_bytes < 2 * (48 << 10)
    assert np.array_equal(network.computed(2, LARGE), computed(network.model(), network.given))


def test_a_layer_takes_few_rows_of_a_request_whatever_memory_there_is() -> None:
    network = Network(0, (1, 3, 128, 128)).picture((1, 3, 128, 128), slice(0, 128), slice(0, 128))
    found = _found(network.conv(16, 3, 2, 1))
    taken = taken_bytes(found, fitted(found, library(), 1, LARGE), LARGE, by_rows=True)
    assert taken < 4 * 3 * 128 * 128 / 2  # of the image


def _found(network: Network) -> QuantisedTask:
    found = network.task()
    assert isinstance(found, QuantisedTask)
    return found
