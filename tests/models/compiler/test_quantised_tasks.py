"""Which nodes of bytes are a task of quantised layers, and which a file may have that are none."""

from dataclasses import replace

import numpy as np
import pytest
from numpy.typing import NDArray

from models.compiler.cutting.quantised_tasks import quantised_groups, whole_task
from models.graphs.graph import Graph
from models.network.fields import Array
from models.network.operators.quantised import Quantised, QuantisedTask
from tests.examples import over
from tests.pipeline.devices.integers.quantised import Network


def _layer() -> Network:
    return Network(0, (1, 6, 7, 16)).conv(16, kernel=3, pad=1, group=16)


def _product() -> Network:
    return Network(0, (6, 16)).product(6)


def _task(graph: Graph) -> Quantised | None:
    found = whole_task(graph, range(len(graph.nodes)), graph.inputs)
    return None if found is None else found.task


def _with_constant(network: Network, at: int, array: NDArray[np.generic]) -> Graph:
    """Return ``network`` with ``array`` as input ``at`` of its last node, a constant."""
    graph = network.graph()
    return replace(graph, constants={**graph.constants, graph.nodes[-1].inputs[at]: array})


def _with_value(network: Network, name: str, shape: tuple[int, ...]) -> Graph:
    graph = network.graph()
    value = Array(dtype=graph.array(name).dtype, shape=shape)
    return replace(graph, values={**graph.values, name: value})


@pytest.mark.parametrize("network", [_layer(), _product()])
def test_what_the_optimiser_writes_is_a_task(network: Network) -> None:
    assert _task(network.graph()) is not None


@over("shape", [(), (1,), (1, 6), (6, 1), (6, 6)])
def test_a_product_whose_biases_are_broadcast_is_none(shape: tuple[int, ...]) -> None:
    assert _task(_with_constant(_product(), 6, np.zeros(shape, np.int32))) is None


def test_a_layer_with_padding_below_zero_in_32_bits_is_none() -> None:
    graph = _with_value(_layer(), "y0", (1, 1, 1, 16))
    pads, strides = [(1 << 32) - 5] * 2 + [1, 0], [1 << 32] * 2
    node = graph.nodes[-1].with_attributes(pads=pads, strides=strides)
    assert _task(replace(graph, nodes=(node,))) is None


def test_a_layer_whose_weights_somebody_gives_is_none() -> None:
    network = _layer()
    graph = network.graph()
    name = graph.nodes[-1].inputs[3]
    weights = {name: Array(dtype="int8", shape=graph.constants[name].shape)}
    others = {key: array for key, array in graph.constants.items() if key != name}
    assert _task(replace(graph, values={**graph.values, **weights}, constants=others)) is None


@over(
    "graph",
    [
        _with_value(_layer(), "y0", (1,)),
        _with_value(_layer(), "x", (1, 6, 7, 15)),
        _with_constant(_layer(), 8, np.zeros(15, np.int32)),
        _with_constant(_layer(), 4, np.ones(15, np.float32)),
        _with_constant(_layer(), 5, np.ones(16, np.uint8)),
    ],
    ids=["result", "channels", "biases", "scales", "signs"],
)
def test_tensors_that_do_not_fit_each_other_are_none(graph: Graph) -> None:
    assert _task(graph) is None


def test_a_group_ends_before_what_no_kernel_computes() -> None:
    """A sum of a tensor with itself, and maxima of windows that may have no pixel."""
    network = Network(0, (1, 6, 7, 16)).conv(16).plus(first=True)
    graph = network.graph()
    assert {group.end for group in quantised_groups(graph).values()} == {2}
    _, *others = graph.nodes[-1].inputs
    twice = graph.nodes[-1].replaced([others[2], *others])
    assert not quantised_groups(replace(graph, nodes=(*graph.nodes[:-1], twice)))
    graph = Network(0, (1, 6, 7, 16)).conv(8).pool(2, 2, 2).graph()
    assert not quantised_groups(graph)


def test_a_group_reads_no_large_weights() -> None:
    graph = Network(0, (1, 6, 7, 16)).conv(16, 3, 1, 1, group=16).conv(8).graph()
    (group,) = quantised_groups(graph, 16 * 9).values()
    assert (group.first, group.end) == (0, 2)
    assert not quantised_groups(graph, 16 * 9 - 1)


def test_a_sum_does_not_lie_over_what_its_layer_reads() -> None:
    """Pixels are read once more for further filters."""
    network = Network(0, (1, 6, 7, 16)).conv(16).plus(first=False)
    (group,) = quantised_groups(network.graph()).values()
    assert group.residual == "z"
    network.nodes[-1].input[3] = "x"
    (group,) = quantised_groups(network.graph()).values()
    assert group.residual is None


def test_tensors_are_numbered_as_ports_then_constants() -> None:
    network = Network(0, (1, 6, 7, 16)).conv(16).plus(first=False)
    found = network.found()
    assert found is not None
    assert isinstance(found.task, QuantisedTask)
    assert found.names[: len(network.given)] == tuple(network.given)
    assert set(found.names[len(network.given) :]) == set(network.constants)
    assert found.task.over == [*network.given].index("z")
