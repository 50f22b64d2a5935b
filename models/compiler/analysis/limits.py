"""Sizes that values of inputs decide: no plan holds what a request may ask for, so none is let through.

How large a tensor is may depend on data, as how many boxes are left does, where the network says how much
that is at most. So of each value is followed whether its numbers have limits: constants have, lengths,
indices, bytes, what saturates and what is clipped; numbers of requests, and what is made of them, have not.
A divisor counts as if it were not near zero, unless values of inputs decide that.
"""

from collections import ChainMap
from collections.abc import Generator, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from numpy.typing import NDArray

from models.compiler.analysis.node_groups import name
from models.errors import CompileError
from models.graphs.graph import Graph
from models.graphs.reader import element_of
from models.network.catalogue import record_of, traits_of
from models.network.names import Op
from models.network.node import Node

_MAX_LISTED = 3
# The number of rounds of a loop is no limit from here on: exporters write the largest integer there is.
_ENDLESS = 1 << 31
# Few numbers: limits of their own.
_SMALL_TYPES = ("bool", "int4", "int8", "uint4", "uint8")
_INTEGERS = ("int32", "int64")


@dataclass(frozen=True)
class NumberLimits:
    """Whether numbers have an upper and a lower limit; of the values of which inputs they are made."""

    above: bool
    below: bool
    inputs: frozenset[str] = frozenset()


_FIXED = NumberLimits(above=True, below=True)


def check_limits(graph: Graph, path: Path) -> None:
    """Check that how large a tensor becomes has a limit that no value of an input moves.

    Raises:
        CompileError: it has none; the message names the node and the inputs.
    """
    types = {item: graph.values[item].dtype for item in graph.inputs if item in graph.values}
    inputs = {item: _both(types.get(item) in _SMALL_TYPES, {item}) for item in graph.inputs}
    flow = _Flow(graph, ChainMap(inputs), ChainMap())
    fault = next(iter(flow.run()), None)
    if fault is not None:
        raise CompileError(f"{path}: {fault}")


def _both(limited: bool, inputs: Iterable[str]) -> NumberLimits:
    return NumberLimits(limited, limited, frozenset(inputs))


def _inputs(several: Iterable[NumberLimits]) -> frozenset[str]:
    return frozenset().union(*(limits.inputs for limits in several))


def _any_of(several: Sequence[NumberLimits]) -> NumberLimits:
    """Return what holds of numbers each of which is one of ``several``."""
    above, below = (all(getattr(limits, side) for limits in several) for side in ("above", "below"))
    return NumberLimits(above, below, _inputs(several))


class _Flow:
    """Follows limits through ``graph``; ``limits``: of what it reads, more with each node.

    What is not known is a constant.
    """

    def __init__(
        self,
        graph: Graph,
        limits: ChainMap[str, NumberLimits],
        constants: ChainMap[str, NDArray[Any]],
    ) -> None:
        self._graph = graph
        self._limits = limits
        self._constants = constants.new_child(dict(graph.constants))

    def of(self, names: Iterable[str]) -> list[NumberLimits]:
        return [self._limits.get(item, _FIXED) for item in names]

    def run(self) -> Iterator[str]:
        """Follow all nodes; yield what is wrong with them."""
        for node in self._graph.nodes:
            if node.operator == Op.Loop:
                results = yield from self._looped(node)
            elif node.operator == Op.Scan:
                results = yield from self._scanned(node)
            elif node.bodies:
                results = yield from self._branched(node)
            else:
                operands = self.of(node.inputs)
                yield from self._sized(node, operands)
                results = [
                    self._result(node, operands, index) for index in range(len(node.outputs))
                ]
            self._limits.update(zip(node.outputs, results, strict=False))

    def _scalar(self, item: str) -> float | None:
        """Return the one number that the constant ``item`` is; None: it is none."""
        constant = self._constants.get(item)
        return None if constant is None or constant.size != 1 else float(constant.item())

    # How large results are.

    def _sized(self, node: Node, operands: Sequence[NumberLimits]) -> Iterator[str]:
        for position, limits in enumerate(operands):
            if not self._sizes(node, position) or self._is_enough(node, position, limits):
                continue
            yield (
                f"what {name(node)} reads as {node.inputs[position]!r}, which decides how large its result "
                f"is, is made of {_listed(limits)} without a limit, so no memory can be planned; "
                f"{_hint(limits)}"
            )

    def _sizes(self, node: Node, position: int) -> bool:
        """Return whether input ``position`` of ``node`` decides how large a result is.

        Of an operator that is not described: one or a list of integers, where a result has no static size.
        """
        operand = traits_of(node.operator).operand(position)
        if operand is not None or record_of(node.operator) is not None:
            return operand is not None and operand.sizes
        array = self._graph.values.get(node.inputs[position])
        is_list = array is not None and array.dtype in _INTEGERS and len(array.shape) <= 1
        return is_list and any(output in self._graph.dynamic for output in node.made)

    def _is_enough(self, node: Node, position: int, limits: NumberLimits) -> bool:
        if node.operator != Op.Range:
            return limits.above
        start, limit, step = range(3)
        size = self._scalar(node.inputs[step])
        if size is None:  # it may be near zero, and of either sign
            return limits.above and limits.below and not (position == step and limits.inputs)
        side = "above" if (position == limit) == (size > 0) else "below"
        return bool(getattr(limits, side)) or position not in (start, limit)

    # Numbers.

    def _result(self, node: Node, operands: Sequence[NumberLimits], index: int) -> NumberLimits:
        """Return what holds of result ``index`` of ``node``, which has no bodies."""
        traits = traits_of(node.operator)
        small = node.operator == Op.Cast and element_of(node.attributes["to"]) in _SMALL_TYPES
        if traits.limited == "lengths":
            return _FIXED
        if small or traits.limited == "all" or (traits.limited == "others" and index):
            return _both(True, _inputs(operands))
        if traits.copies:
            return operands[0]
        if traits.limited == "chosen":
            return _any_of([operands[index] for index in traits.positions(len(operands), "data")])
        return _computed(node, operands)

    # Bodies.

    def _branched(self, node: Node) -> "_Results":
        """Return what holds of results of any of the bodies, which read anything that the node does."""
        arguments = _any_of(self.of(node.inputs))
        results = [_FIXED] * len(node.outputs)
        for body in _bodies(node):
            outputs = yield from self._followed(body, [arguments] * len(body.inputs))
            results = [_any_of(both) for both in zip(results, outputs, strict=True)]
        return results

    def _scanned(self, node: Node) -> "_Results":
        (body,) = _bodies(node)
        arguments = self.of(node.inputs[-len(body.inputs) :])
        states = len(arguments) - int(node.attributes["num_scan_inputs"])
        return (yield from self._settled(body, arguments, 0, states))

    def _looped(self, node: Node) -> "_Results":
        (body,) = _bodies(node)
        trips, going, *carried = self.of(node.inputs)
        results = yield from self._settled(body, [trips, going, *carried], 2, len(carried))
        deciding = self._deciding(node, trips, [going, results[0]])
        if deciding.inputs:
            if len(body.outputs) > 1 + len(carried) or _grows(body, len(carried)):
                yield (
                    f"{name(node)} runs as often as {_listed(deciding)} say, without a limit, and its "
                    f"results become larger each time, so no memory can be planned; {_hint(deciding)}"
                )
            carried = [_any_of([limits, deciding]) for limits in carried]
            arguments = [deciding, going, *carried]
            results = yield from self._settled(body, arguments, 2, len(carried))
        return results[1:]

    def _deciding(
        self, node: Node, trips: NumberLimits, conditions: Sequence[NumberLimits]
    ) -> NumberLimits:
        """Return of which inputs the rounds of a Loop are made; of none where there are only so many."""
        count = self._scalar(node.inputs[0])
        if node.inputs[0] and trips.above and (count is None or count < _ENDLESS):
            return _FIXED
        return _both(False, _inputs([trips, *conditions]))

    def _settled(
        self, body: Graph, arguments: Sequence[NumberLimits], first: int, carried: int
    ) -> "_Results":
        """Return what holds of results of ``body``, which reads some again.

        ``arguments``: of its inputs, of which ``carried`` from ``first`` on are its last results, too.
        """
        start = max(first - 1, 0)  # what a Loop reads begins with a count, what it makes does not
        while True:
            results = yield from self._followed(body, arguments)
            again = results[start : start + carried]
            states = [
                _any_of(both)
                for both in zip(arguments[first : first + carried], again, strict=True)
            ]
            settled = [*arguments[:first], *states, *arguments[first + carried :]]
            if settled == list(arguments):
                return results
            arguments = settled

    def _followed(self, body: Graph, arguments: Sequence[NumberLimits]) -> "_Results":
        around = self._limits.new_child(dict(zip(body.inputs, arguments, strict=True)))
        flow = _Flow(body, around, self._constants)
        yield from flow.run()
        return flow.of(body.outputs)


#: Yields what is wrong; returns what holds of results.
_Results = Generator[str, None, list[NumberLimits]]


def _bodies(node: Node) -> Iterator[Graph]:
    for body in node.bodies:
        assert isinstance(body, Graph)
        yield body


def _computed(node: Node, operands: Sequence[NumberLimits]) -> NumberLimits:
    """Return what holds of what an operator computes: limits of all that it reads are those of a result."""
    traits = traits_of(node.operator)
    above = [limits.above for limits in operands]
    below = [limits.below for limits in operands]
    has_all, is_fixed = all((*above, *below)), not _inputs(operands[-1:])
    match traits.function:
        case "add":
            limits = all(above), all(below)
        case "subtract":
            limits = above[0] and below[1], below[0] and above[1]
        case "negative":
            limits = below[0], above[0]
        case "larger":
            limits = all(above), any(below)
        case "smaller":
            limits = any(above), all(below)
        case "relu":
            limits = above[0], True
        case "clip":
            limits = _clipped(node, above, below)
        case "divide" | "log" | "power":
            limits = (has_all and is_fixed,) * 2
        case "modulo":
            limits = (above[1] and below[1],) * 2
        case _ if traits.keeps_order == "yes" and len(operands) == 1:
            limits = above[0], below[0]
        case _:
            limits = (has_all,) * 2
    return NumberLimits(*limits, _inputs(operands))


def _clipped(node: Node, above: Sequence[bool], below: Sequence[bool]) -> tuple[bool, bool]:
    """Return whether what a Clip makes has an upper and a lower limit."""
    lower, upper = (
        name in node.attributes or (any(node.inputs[index : index + 1]) and limits[index])
        for index, (name, limits) in enumerate((("min", below), ("max", above)), 1)
    )
    return above[0] or upper, below[0] or lower


def _grows(body: Graph, carried: int) -> bool:
    """Return whether a tensor that ``body`` carries from round to round may become larger in each."""
    larger = dict.fromkeys(body.inputs[2:], False)
    for node in body.nodes:
        traits = traits_of(node.operator)
        if traits.limited == "all":
            continue  # of Shape, as long as its operand has dimensions
        read = node.inputs[:1] if traits.copies else node.reads
        carried_over = [larger[item] for item in read if item in larger]
        if carried_over:
            sizes = any(operand.sizes for operand in traits.operands)
            grown = any(carried_over) or sizes or node.operator == Op.Concat or bool(node.bodies)
            larger.update(dict.fromkeys(node.made, grown))
    states = zip(body.inputs[2:], body.outputs[1 : 1 + carried], strict=False)
    return any(
        larger.get(after, False) and not _has_shape_of(body, before, after)
        for before, after in states
    )


def _has_shape_of(body: Graph, before: str, after: str) -> bool:
    """Return whether both have the same static shape."""
    first, last = body.values.get(before), body.values.get(after)
    return first is not None and last is not None and first.shape == last.shape


def _listed(limits: NumberLimits) -> str:
    names = sorted(limits.inputs)
    more = f" (and {len(names) - _MAX_LISTED} more)" if len(names) > _MAX_LISTED else ""
    listed = ", ".join(map(repr, names[:_MAX_LISTED]))
    return f"values of input{'s' if len(names) > 1 else ''} {listed}{more}"


def _hint(limits: NumberLimits) -> str:
    them = "them constants" if len(limits.inputs) > 1 else "it a constant"
    return f"make {them} of the network, or limit what is made there (Clip, Min)"
