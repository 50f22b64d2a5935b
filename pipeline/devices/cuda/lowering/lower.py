"""From a piece, a small ONNX model, to the launches that compute it."""

from collections.abc import Mapping, Sequence
from typing import Any

import onnx
from numpy.typing import NDArray

from models.graphs.fusion import Fusion, Surroundings, fused_with
from models.graphs.nodes import reads, subgraphs
from pipeline.devices.cuda.call import Call, Pointer, Program
from pipeline.devices.cuda.calls.convolutions.geometry import Convolution
from pipeline.devices.cuda.calls.strided import copy_bytes
from pipeline.devices.cuda.lowering.errors import NotCoveredError, UnsuitedError
from pipeline.devices.cuda.lowering.geometry import geometry_key, worth_measuring
from pipeline.devices.cuda.lowering.handlers import ALIASES, OPERATORS
from pipeline.devices.cuda.lowering.inner_memory import place
from pipeline.devices.cuda.lowering.node import Node, domain_of, parse
from pipeline.devices.cuda.lowering.scope import Scope
from pipeline.devices.cuda.lowering.settings import Settings
from pipeline.devices.cuda.lowering.shapes import Value, infer, take_constants


def lower(graph: bytes, settings: Settings) -> Program:
    """Return the launches of a serialised piece.

    An output may lie in the memory of an input where the piece is one operator on elements and both have
    the same shape, and in that of the tensor which a convolution adds.

    Raises:
        NotCoveredError: no kernel does what some node asks for.
    """
    return _lowering(graph, settings).program()


def describe(graph: bytes, settings: Settings | None = None) -> list[str]:
    """Return the names of the kernels that a piece runs, in order.

    Raises:
        NotCoveredError: no kernel does what some node asks for.
    """
    return [call.function for call in lower(graph, settings or Settings()).calls]


def geometries(graph: bytes, settings: Settings) -> dict[str, tuple[str, ...]]:
    """Return what to choose of: the algorithms that a piece's convolutions may take, by geometry.

    Raises:
        NotCoveredError: no kernel does what some node asks for.
    """
    return {
        geometry_key(shape): worth_measuring(shape, settings)
        for shape in convolutions(graph, settings)
    }


def convolutions(graph: bytes, settings: Settings) -> tuple[Convolution, ...]:
    """Return the convolutions of a piece, in order.

    Raises:
        NotCoveredError: no kernel does what some node asks for.
    """
    lowering = _lowering(graph, settings)
    lowering.program()
    return tuple(lowering.convolutions)


def _lowering(graph: bytes, settings: Settings) -> "_Lowering":
    model = onnx.load_model_from_string(graph)
    constants = take_constants(model.graph)
    opsets = {domain_of(item.domain): item.version for item in model.opset_import}
    nodes = [parse(node, opsets) for node in model.graph.node]
    unknown = [_label(node) for node in nodes if not _known(node)]
    unknown += [node.op_type for node in model.graph.node if any(subgraphs(node))]
    if unknown:
        raise NotCoveredError([f"{label}: no kernel" for label in dict.fromkeys(unknown)])
    return _Lowering(model.graph, nodes, infer(model, constants), constants, settings)


def _known(node: Node) -> bool:
    return node.operator in ALIASES.get(node.domain, ()) or node.operator in OPERATORS.get(
        node.domain, {}
    )


def _is_alias(node: Node) -> bool:
    return node.operator in ALIASES.get(node.domain, ())


def _label(node: Node) -> str:
    return f"{node.domain}.{node.operator}" if node.domain else node.operator


class _Lowering:
    """One piece."""

    def __init__(
        self,
        graph: onnx.GraphProto,
        nodes: Sequence[Node],
        values: Mapping[str, Value],
        constants: Mapping[str, NDArray[Any]],
        settings: Settings,
    ) -> None:
        self._graph = graph
        self._nodes = nodes
        self._values = values
        self._constants = constants
        self._inputs = {
            port.name: Pointer("input", index) for index, port in enumerate(graph.input)
        }
        self._homes = self._outputs()
        self._scope = Scope(settings, values, constants, self._inputs | self._homes)

    @property
    def convolutions(self) -> Sequence[Convolution]:
        """Of the program, once it was made."""
        return self._scope.convolutions

    def program(self) -> Program:
        calls: list[Call] = []
        missing = [
            f"{port.name}: no node makes this output"
            for port in self._graph.output
            if port.name in self._inputs or port.name in self._constants
        ]
        fusions = self._fusions()
        inside = {index for head, item in fusions.items() for index in item.nodes if index != head}
        for index, node in enumerate(self._nodes):
            if index in inside:
                continue
            fusion = fusions.get(index)
            try:
                calls += self._calls(node if fusion is None else node.fused(fusion))
            except (UnsuitedError, ValueError) as exc:
                missing.append(f"{_label(node)}: {exc}")
        if missing:
            raise NotCoveredError(missing)
        placed, inner_bytes = place(calls, self._scope.inner)
        return Program(placed, inner_bytes, tuple(self._scope.tables))

    def _calls(self, node: Node) -> list[Call]:
        if not _is_alias(node):
            return OPERATORS[node.domain][node.operator](node, self._scope)
        if node.operator == "Dropout" and any(node.inputs[2:]):
            raise UnsuitedError("it may drop")
        source, result = node.input(0), node.output
        home = self._homes.get(result)
        if home is None:
            self._scope.alias(result, source)
            return []
        if self._homes.get(source) == home:
            return []
        return [copy_bytes(self._scope.read(source), home, self._scope.value(source).n_bytes)]

    def _outputs(self) -> dict[str, Pointer]:
        """Return where the outputs lie, and the values that become outputs under another name."""
        homes = {port.name: Pointer("output", i) for i, port in enumerate(self._graph.output)}
        for node in reversed(self._nodes):
            if not _is_alias(node) or len(node.outputs) != 1 or node.outputs[0] not in homes:
                continue
            source = node.inputs[0]
            if source not in self._inputs and source not in self._constants:
                homes.setdefault(source, homes[node.outputs[0]])
        return homes

    def _fusions(self) -> dict[int, Fusion]:
        """Return what is computed at once, by its first node; no node is in two of them."""
        readers: dict[str, list[int]] = {}
        for index, proto in enumerate(self._graph.node):
            for name in dict.fromkeys(reads(proto)):
                readers.setdefault(name, []).append(index)
        around = Surroundings(
            self._graph.node,
            readers,
            {port.name for port in self._graph.output},
            lambda name: value.shape if (value := self._values.get(name)) else None,
            self._constants.get,
        )
        found: dict[int, Fusion] = {}
        taken: set[int] = set()
        for index in range(len(self._graph.node)):
            fusion = None if index in taken else fused_with(around, index)
            if fusion is not None:
                found[index] = fusion
                taken.update(fusion.nodes)
        return found
