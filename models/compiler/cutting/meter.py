"""Measures what pieces allocate while they run, where no formula is known (scratch.py)."""

import itertools
import json
import os
import select
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from types import TracebackType
from typing import Any, NamedTuple, Self

import numpy as np

from models.graphs.graph import Graph, all_graphs
from models.graphs.order import fresh
from models.graphs.reader import graph_from
from models.graphs.writer import serialised
from models.network.names import Op
from models.network.node import Node
from models.processes import Child, python_command, start
from models.runtime.allocations import KINDS, Run, Tensor, is_float

# A kernel may allocate for each thread, up to the number of its tasks: the first steps are the largest.
_THREADS = (1, 2, 4, 16)
# Of a graph, whose inputs are drawn: one that does not end is refused.
_MAX_SECONDS = 300.0
# What is measured counts up to two of these more, for what changes from run to run.
_UNIT_BYTES, _STEP_BYTES = 16 << 10, 4 << 10
# Of so many branches all combinations are run.
_MAX_BRANCHES = 4
# The process writes the state of its heap to a file in memory.
_MAX_FILE_BYTES = 16 << 20


class MeterError(Exception):
    """What a graph allocates cannot be measured; the message is one line."""


class InputsError(MeterError):
    """It takes none of the inputs that were drawn."""


class _GoneError(MeterError):
    """The process that measures has ended; the message is what it wrote last."""

    def __init__(self, words: str) -> None:
        super().__init__(f"the process that measures has ended: {words}")


class Allocated(NamedTuple):
    """``n_bytes`` with one thread, and for each further one ``thread_bytes``."""

    n_bytes: int
    thread_bytes: int


class Meter:
    """A process that runs graphs and measures what they allocate; it starts when the first one comes.

    Close it. ``max_seconds``: that a graph may take.
    """

    #: What the process runs.
    module = "models.runtime.allocations"

    def __init__(self, max_seconds: float = _MAX_SECONDS) -> None:
        self._max_seconds = max_seconds
        self._child: Child | None = None
        self._results: dict[tuple[bytes, str], Allocated] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        exc: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """End the process; a later graph would start another."""
        child, self._child = self._child, None
        if child is not None:
            child.kill()

    def allocated(
        self, graph: bytes, inputs: Sequence[Tensor], outputs: Sequence[Tensor] | None
    ) -> Allocated:
        """Return the most that ``graph`` allocates while it runs, whichever branches it takes.

        Args:
            graph: a serialised model.
            inputs: what it reads.
            outputs: what it makes, whose memory is there before; None: it allocates that, too.

        Raises:
            InputsError: it takes none of the inputs that were drawn.
            MeterError: it cannot be measured.
        """
        key = graph, repr((inputs, outputs))
        if key not in self._results:
            candidates = self.peaks(graph, inputs, outputs, _THREADS)
            self._results[key] = _largest([_line_above(candidate) for candidate in candidates])
        return self._results[key]

    def peaks(
        self,
        graph: bytes,
        inputs: Sequence[Tensor],
        outputs: Sequence[Tensor] | None,
        threads: Sequence[int],
    ) -> list[dict[int, int]]:
        """Return, for each way through its branches, what was measured with each number of ``threads``.

        Raises as ``allocated``.
        """
        run = Run(0, inputs, outputs, threads)
        several = (self._on_drawn(variant, run) for variant in _taking_branches(graph))
        measured, errors = [], list[MeterError]()
        for peaks, error in several:
            if error is not None:
                errors.append(error)
            else:
                measured.append(dict(zip(threads, peaks, strict=True)))
        if not measured:  # a branch that is never taken may be none that could run
            raise errors[-1]
        return measured

    def _on_drawn(self, graph: bytes, run: Run) -> tuple[list[int], MeterError | None]:
        """Return the most over the inputs that ``graph`` takes; or why it takes none."""
        # Then no number decides how much there is to do.
        is_sure = run.outputs is not None and all(is_float(dtype) for dtype, _ in run.inputs)
        results: list[list[int]] = []
        error: MeterError | None = None
        for kind in KINDS:
            try:
                results.append(self._answer(graph, replace(run, n_bytes=len(graph), kind=kind)))
            except InputsError as exc:
                error = error or exc
            except _GoneError as exc:  # a kernel that divides by an integer of 0 ends it
                error = exc
            if results and is_sure:
                break
        return [max(peaks) for peaks in zip(*results, strict=True)], None if results else error

    def _answer(self, graph: bytes, run: Run) -> list[int]:
        """Return what the process measures.

        Raises:
            InputsError: ONNX Runtime refuses the graph or the inputs.
            MeterError: the process ends, or does not end in time.
        """
        process = (self._child or self._start()).process
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            process.stdin.write(json.dumps(asdict(run)).encode() + b"\n" + graph)
            process.stdin.flush()
            answer: dict[str, Any] = json.loads(self._line(process.stdout.fileno()))
        except OSError as exc:
            raise _GoneError(self._last_words() or str(exc)) from exc
        except BaseException:
            self.close()
            raise
        if "error" in answer:
            raise InputsError(answer["error"])
        peaks: list[int] = answer["bytes"]
        return peaks

    def _line(self, descriptor: int) -> bytes:
        ends = time.monotonic() + self._max_seconds
        line = b""
        while not line.endswith(b"\n"):
            ready, _, _ = select.select([descriptor], [], [], max(ends - time.monotonic(), 0.0))
            if not ready:
                raise MeterError(f"it still runs after {self._max_seconds:g} s on drawn inputs")
            more = os.read(descriptor, 1 << 16)
            if not more:
                raise _GoneError(self._last_words())
            line += more
        return line

    def _start(self) -> Child:
        self._child = start(python_command(self.module, str(os.getpid())), _MAX_FILE_BYTES)
        return self._child

    def _last_words(self) -> str:
        """Return the status of the process, and the end of what it wrote to standard error."""
        if (child := self._child) is None:
            return ""
        child.process.wait()
        self.close()
        return child.exit_text()


def _line_above(peaks: Mapping[int, int]) -> Allocated:
    """Return what is at least ``peaks``, those of each number of threads, and of more."""
    # A little more with more threads is no matter of threads: figures would change from time to time.
    min_bytes = max(min(peak, peaks[1] + _UNIT_BYTES) for peak in peaks.values())
    n_bytes = (min_bytes // _UNIT_BYTES + 2) * _UNIT_BYTES
    steps = ((peak - n_bytes) // (count - 1) + 1 for count, peak in peaks.items() if count > 1)
    return Allocated(n_bytes, -(-max(0, *steps) // _STEP_BYTES) * _STEP_BYTES)


def _largest(several: Sequence[Allocated]) -> Allocated:
    n_bytes, thread_bytes = zip(*several, strict=True)
    return Allocated(max(n_bytes), max(thread_bytes))


def _taking_branches(data: bytes) -> Iterator[bytes]:
    """Yield ``data`` for each way through its branches, since what it reads may decide; at most 18 ways.

    With more than four branches: all of one kind, then all of the other, then those of the graph itself,
    with what is inside of them as lengths there decide.
    """
    graph = graph_from(data)
    nodes = (node for body in all_graphs(graph) for node in body.nodes)
    count = sum(node.operator == Op.If for node in nodes)
    if not count:
        yield data
        return
    used = {name for body in all_graphs(graph) for name in body.names}
    names = [fresh("never", used), fresh("always", used)]
    answers = {name: np.array(bool(truth)) for truth, name in enumerate(names)}
    graph = replace(graph, constants={**graph.constants, **answers})
    for chosen in itertools.product(names, repeat=count if count <= _MAX_BRANCHES else 1):
        yield serialised(_deciding(graph, itertools.cycle(chosen)))
    outer = sum(node.operator == Op.If for node in graph.nodes)
    if count > _MAX_BRANCHES and outer:
        for chosen in itertools.product(names, repeat=outer if outer <= _MAX_BRANCHES else 1):
            yield serialised(_deciding(graph, itertools.cycle(chosen), is_inside=False))


def _deciding(graph: Graph, conditions: Iterator[str], is_inside: bool = True) -> Graph:
    """Return ``graph`` with the next of ``conditions`` for each If; ``is_inside``: those in bodies, too."""
    nodes = (_decided(node, conditions, is_inside) for node in graph.nodes)
    return replace(graph, nodes=tuple(nodes))


def _decided(node: Node, conditions: Iterator[str], is_inside: bool) -> Node:
    inputs = node.inputs
    if node.operator == Op.If:
        inputs = (next(conditions), *inputs[1:])
    if not is_inside:
        return replace(node, inputs=inputs)
    attributes = {
        name: _deciding(value, conditions) if isinstance(value, Graph) else value
        for name, value in node.attributes.items()
    }
    return replace(node, inputs=inputs, attributes=attributes)
