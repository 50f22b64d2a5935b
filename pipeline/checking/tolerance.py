"""How far two right answers of a network may be apart: computed from the errors of its kernels and passes.

Both sides round. Let rounding i be off by at most u_i of the largest number that its operator makes, with
errors that are independent, and uniform between -u_i and u_i: their sum is sub-Gaussian with the sum of
u_i^2 / 3. To first order the error of an answer is that sum, where the rest of the network carries on each
of them, and networks that keep the scale of what they read carry it on as it is. So but for a chance of p
all N numbers of an answer are right within

    sqrt(2 ln(2 N / p)) sqrt(sum u_i^2 / 3)

of its largest, which is for a whole network what N. Higham and T. Mary, "A new approach to probabilistic
rounding error analysis", SIAM J. Sci. Comput. 41(5), 2019, Theorem 2.4, prove for a sum. What counts is the
path to an output on which most is rounded. The u_i, by classes of kernels (models/runtime/kernels.py) and
passes:

- same bits: none, where numbers are moved or selected. Arithmetic has one, u = 2^-24, since a kernel may
  compute it fused with others.
- other order: a sum of n terms has n - 1 partial sums, the k-th about sqrt(k / n) of the result. So the
  squares add up to n u^2 / 2 on each side, n u^2 on both.
- bound: a kernel for a function is within 4 units in the last place, which is 8 u, on each side, and once
  more for each pass that writes such operators otherwise.

Numbers of fewer bits are roundings with a larger u, half a step: of what an operator makes (16-bit floats,
quantised tensors), or of a layer's weights, where these are stored so.

No formula in shapes knows whether a network amplifies what it reads, so that right answers are farther
apart: check.py then asks ONNX Runtime what it makes of inputs that are off by as much.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from models.compiler.passes.table import passes_of
from models.graphs.graph import Graph, all_graphs
from models.graphs.reader import graph_at, shapes_at
from models.graphs.traits import Traits, read_traits
from models.network.catalogue import OperatorRecord, traits_of
from models.network.node import Node
from models.packs.names import Store
from models.packs.target import Target
from models.runtime.kernels import kernel_of
from pipeline.checking.comparison import ComparisonRules, Tolerance

Shape = tuple[int, ...]

# Half a step, of the largest number: floats of 32 and 16 bits, quantised tensors of 8 bits.
_FLOAT, _HALF, _QUANTISED = 2.0**-24, 2.0**-11, 0.5 / 255
# The same of weights as they are stored; 8-bit integers are from -127 to 127.
_STORED: Mapping[Store, float] = {"fp16": 2.0**-11, "bf16": 2.0**-8, "int8": 0.5 / 127}
# Of a kernel for a function, in units of 32-bit floats.
_FUNCTION = 8 * _FLOAT
# Of one answer to be farther off.
_CHANCE = 1e-6


class _Rounding(NamedTuple):
    """On the way to a value the sum of u^2: of ``floats`` of 32 bits, and of what has fewer bits."""

    floats: float = 0.0
    coarse: float = 0.0

    def then(self, other: "_Rounding") -> "_Rounding":
        return _Rounding(*(one + two for one, two in zip(self, other, strict=True)))

    @staticmethod
    def largest(several: Iterable["_Rounding"]) -> "_Rounding":
        return _Rounding(*map(max, zip(_Rounding(), *several, strict=True)))


def comparison_of(path: Path, target: Target, store: Store) -> ComparisonRules:
    """Return how answers of a network are compared with those of its pack; arguments as `tolerance_of`."""
    traits = read_traits(path)
    tolerance = tolerance_of(path, traits, target, store)
    return ComparisonRules(tolerance, traits.random, traits.jumps, traits.compared)


def tolerance_of(path: Path, traits: Traits, target: Target, store: Store) -> Tolerance:
    """Return how far apart right answers of a network and of its pack may be.

    Args:
        path: the ONNX file; its weights are not read.
        traits: of it.
        target: what it is compiled for, which says by what passes.
        store: how the pack's weights are stored.
    """
    graph, shapes = graph_at(path), shapes_at(path)
    bounded = sum(step.error == "within a bound" for step in passes_of(target))
    network = _Network(graph, shapes, traits, _STORED.get(store, 0.0), bounded)
    rounding = network.rounding(graph)
    factor = math.sqrt(2 * math.log(2 * network.n_numbers / _CHANCE) / 3)
    return Tolerance(
        factor * math.sqrt(rounding.floats + rounding.coarse),
        int(traits.quantised),
        factor * math.sqrt(rounding.floats),
    )


class _Network:
    def __init__(
        self,
        graph: Graph,
        shapes: Mapping[str, Shape],
        traits: Traits,
        stored: float,
        bounded_passes: int,
    ) -> None:
        self._traits = traits
        self._stored = stored
        self._functions = 2 + bounded_passes
        self._shapes = {name: shape for name, shape in shapes.items() if min(shape, default=1) > 0}
        self._weights: dict[str, Shape] = {
            name: array.shape
            for subgraph in all_graphs(graph)
            for name, array in subgraph.constants.items()
        }
        self.n_numbers = max(
            (math.prod(self._shapes.get(name) or (1,)) for name in graph.outputs), default=1
        )

    def rounding(self, graph: Graph) -> _Rounding:
        """Return the most on the way to a value of ``graph``; bodies of loops are counted once."""
        before: dict[str, _Rounding] = {}
        for node in graph.nodes:
            reached = _Rounding.largest(before[name] for name in node.inputs if name in before)
            here = reached.then(self._of(node))
            before.update(dict.fromkeys(node.outputs, here))
        return _Rounding.largest(before.values())

    def _of(self, node: Node) -> _Rounding:
        bodies = [self.rounding(body) for body in node.bodies if isinstance(body, Graph)]
        record, kernel = traits_of(node.operator), kernel_of(node.operator)
        error = "bound" if kernel is None else kernel.error
        if record.elements in ("moved", "selected"):
            return _Rounding.largest(bodies)
        floats = (self._terms(node, record) if error == "other order" else 1) * _FLOAT**2
        if error == "bound":
            floats += self._functions * _FUNCTION**2
        coarse = 0.0
        if self._traits.half:
            coarse += _HALF**2
        if _quantises(record, len(node.inputs)):
            coarse += _QUANTISED**2
        if record.layer:
            coarse += self._stored**2
        return _Rounding.largest([*bodies, _Rounding(floats, coarse)])

    def _terms(self, node: Node, record: OperatorRecord) -> int:
        """Return how many terms the sums of ``node`` have."""
        for position, name in enumerate(node.inputs):
            operand, shape = record.operand(position), self._weights.get(name)
            if operand is None or operand.role != "weight" or operand.axis is None or not shape:
                continue
            axis = 0 if node.attributes.get("transB") else operand.axis
            return math.prod(shape) // max(shape[axis], 1)
        read = self._shapes.get(node.inputs[0]) if node.inputs else None
        result = self._shapes.get(node.output) if node.outputs else None
        if (
            not read or result is None
        ):  # nothing is said of it: as many as a layer of the network has
            return max(map(math.prod, self._weights.values()), default=1)
        if record.access == "product":
            return read[-1]
        window: Sequence[int] = node.attributes.get("kernel_shape", ())
        return max(math.prod(window), math.prod(read) // max(math.prod(result), 1), read[-1], 1)


def _quantises(record: OperatorRecord, count: int) -> bool:
    """Return whether an operator with ``count`` inputs rounds what it makes to steps."""
    if record.elements != "quantised":
        return False
    scales = record.scales(count)
    if not scales:
        return record.access == "elementwise"
    operand = record.operand(scales[-1])
    return operand is not None and operand.of_result
