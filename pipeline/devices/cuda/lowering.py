"""Lowering: a piece, a small ONNX model, becomes launches of kernels.

Each node is read as an operator (models/network/operators), several of them may become one
(models/graphs/fusion.py), and operators/ has the launches of each kind.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from models.graphs.fusion import Surroundings, fusions
from models.graphs.graph import Graph, has_dtype
from models.graphs.reader import graph_from
from models.network.catalogue import read_operator, traits_of
from models.network.fields import UNKNOWN, Array
from models.network.node import KnownTensors, NamedTensor, UnsuitedError
from models.network.operators.reading import (
    Convolution,
    Operator,
    Reshape,
    results,
)
from pipeline.devices.cuda.call import DevicePointer, KernelLaunch, LaunchProgram
from pipeline.devices.cuda.operators import launches
from pipeline.devices.cuda.operators.convolutions.algorithms import geometry_key, worth_measuring
from pipeline.devices.cuda.operators.copies import copy_bytes
from pipeline.devices.cuda.scope import ConvolutionSettings, Scope


class NotCoveredError(Exception):
    """Kernels do not cover all nodes of a piece; ``operators`` has an "OpType: reason" for each."""

    def __init__(self, operators: Sequence[str]) -> None:
        super().__init__("; ".join(operators))
        self.operators = tuple(operators)


#: Of the inputs of a piece.
Shapes = tuple[tuple[int, ...], ...]


def lower(
    graph: bytes, settings: ConvolutionSettings, shapes: Shapes | None = None
) -> LaunchProgram:
    """Return the launches of a serialised piece; ``shapes``: of its inputs, where it does not say them.

    An output may lie in the memory of an input where the piece is one operator on elements and both have
    the same shape, and in that of the tensor which a convolution adds.

    Raises:
        NotCoveredError: no kernel does what some node asks for.
    """
    return _Lowering(graph, shapes).program(settings)


def is_sized(graph: bytes) -> bool:
    """Return whether a serialised piece says how large its inputs are; row operators do not."""
    piece = graph_from(graph)
    ports = (_port(piece, name) for name in piece.inputs)
    return not any(array is not None and UNKNOWN in array.shape for array in ports)


def describe(graph: bytes, settings: ConvolutionSettings | None = None) -> list[str]:
    """Return the names of the kernels that a piece runs, in order.

    Raises:
        NotCoveredError: no kernel does what some node asks for.
    """
    return [call.function for call in lower(graph, settings or ConvolutionSettings()).calls]


def geometries(graph: bytes, settings: ConvolutionSettings) -> dict[str, tuple[str, ...]]:
    """Return what to choose of: the algorithms that a piece's convolutions may take, by geometry.

    Raises:
        NotCoveredError: no kernel does what some node asks for.
    """
    return {geometry_key(it): worth_measuring(it, settings) for it in convolutions(graph, settings)}


def convolutions(graph: bytes, settings: ConvolutionSettings) -> tuple[Convolution, ...]:
    """Return the convolutions of a piece, in order.

    Raises:
        NotCoveredError: no kernel does what some node asks for.
    """
    lowering = _Lowering(graph)
    lowering.program(settings)
    return tuple(it for it in lowering.operators.values() if isinstance(it, Convolution))


class _Lowering:
    """One piece: its nodes as operators, or why they are none."""

    def __init__(self, piece: bytes, shapes: Shapes | None = None) -> None:
        self._graph = graph = graph_from(piece)
        self._nodes = graph.nodes
        unknown = [node.operator for node in self._nodes if not traits_of(node.operator).read]
        if unknown:
            raise NotCoveredError([f"{name}: no kernel" for name in dict.fromkeys(unknown)])
        arrays = {
            name: Array(dtype=item.dtype.name, shape=item.shape)
            for name, item in graph.constants.items()
            if has_dtype(item)
        }
        arrays |= {name: array for name in graph.inputs if (array := _port(graph, name))}
        for name, shape in zip(graph.inputs, shapes or (), strict=shapes is not None):
            if name in arrays:
                arrays[name] = replace(arrays[name], shape=shape)
        self._values = {
            name: NamedTensor(name=name, dtype=array.dtype, shape=array.shape)
            for name, array in arrays.items()
            if not array.is_loose
        }
        self._known = KnownTensors(self._values.get, graph.constants.get)
        self._reasons: dict[int, str] = {}
        self.operators = self._fused(self._read())

    def _read(self) -> dict[int, Operator]:
        """Return what nodes are, each by itself; those that read what is not known are left out."""
        operators: dict[int, Operator] = {}
        unknown: set[str] = set()
        for index, node in enumerate(self._nodes):
            if unknown.isdisjoint(node.inputs):
                try:
                    operators[index] = read_operator(node, self._known)
                except ValueError as exc:
                    self._reasons[index] = str(exc)
                else:
                    self._values |= {value.name: value for value in results(operators[index])}
                    continue
            unknown.update(filter(None, node.outputs))
        return operators

    def _fused(self, alone: Mapping[int, Operator]) -> dict[int, Operator]:
        """Return what is computed, in order, by its first node; several nodes may be one operator."""
        makers = {name: index for index, node in enumerate(self._nodes) for name in node.outputs}
        around = Surroundings(
            self._nodes,
            self._graph.outputs,
            self._known,
            # What is added lies there before.
            lambda index, name: makers.get(name, -1) < index,
        )
        operators = dict(alone)
        for index, fusion in fusions(around, range(len(self._nodes))).items():
            if alone.keys() >= set(fusion.nodes):
                operators[index] = fusion.operator(alone[index], self._values.__getitem__)
                for other in fusion.nodes[1:]:
                    del operators[other]
        return operators

    def program(self, settings: ConvolutionSettings) -> LaunchProgram:
        """Return the launches.

        Raises:
            NotCoveredError: no kernel does what some node asks for.
        """
        homes = self._homes()
        inputs = {name: DevicePointer("input", i) for i, name in enumerate(self._graph.inputs)}
        scope = Scope(settings, inputs | homes, self._graph.constants)
        calls: list[KernelLaunch] = []
        reasons = dict(self._reasons)
        for index, operator in self.operators.items():
            try:
                if isinstance(operator, Reshape):
                    calls += _renamed(operator, homes, scope)
                else:
                    calls += launches(operator, scope)
            except UnsuitedError as exc:
                reasons[index] = str(exc)
        missing = [*self._amiss()]
        missing += [f"{self._nodes[at].operator}: {why}" for at, why in sorted(reasons.items())]
        if missing:
            raise NotCoveredError(missing)
        placed, inner_bytes = scope.placed(calls)
        return LaunchProgram(placed, inner_bytes, tuple(scope.tables))

    def _homes(self) -> dict[str, DevicePointer]:
        """Return where the outputs lie, and the values that become outputs under another name."""
        homes = {name: DevicePointer("output", i) for i, name in enumerate(self._graph.outputs)}
        given = {*self._graph.inputs, *self._graph.constants}
        for operator in reversed(self.operators.values()):
            if not isinstance(operator, Reshape) or operator.x.name in given:
                continue
            if operator.y.name in homes:
                homes.setdefault(operator.x.name, homes[operator.y.name])
        return homes

    def _amiss(self) -> Iterator[str]:
        """Yield what is wrong with the outputs: no node makes them, or one of another size."""
        given = {*self._graph.inputs, *self._graph.constants}
        for name in self._graph.outputs:
            if name in given:
                yield f"{name}: no node makes this output"
            said, made = self._graph.values.get(name), self._values.get(name)
            if said and made and (said.dtype, said.shape) != (made.dtype, made.shape):
                arrays = (f"{array.dtype} {list(array.shape)}" for array in (made, said))
                yield "{}: {} is made, not {}".format(name, *arrays)


def _renamed(it: Reshape, homes: Mapping[str, DevicePointer], scope: Scope) -> list[KernelLaunch]:
    """Return what another shape costs: nothing, or a copy where two outputs of the piece are one value."""
    home = homes.get(it.y.name)
    if home is None:
        scope.alias(it.y, it.x)
    elif homes.get(it.x.name) != home:
        return [copy_bytes(scope.read(it.x), home, it.x.n_bytes)]
    return []


def _port(graph: Graph, name: str) -> Array | None:
    """Return what a port is; None: NumPy has no such elements, or nothing is known of its dimensions."""
    return graph.dynamic[name].array if name in graph.dynamic else graph.values.get(name)
