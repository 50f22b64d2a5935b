"""Compare the graph that becomes C with its source, before C is written."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from models.compiler.for_c import GraphForC
from models.graphs.graph import Graph
from models.network.node import NamedTensor
from models.packs.target import c_target
from models.progress import Progress, silent
from models.runtime.sessions import SessionError
from pipeline.checking.check import Arrays, Checker, Reference
from pipeline.checking.comparison import Tolerance
from pipeline.checking.tolerance import comparison_of
from pipeline.checking.trials import TrialError


@dataclass(frozen=True)
class _GraphAnswers:
    """Answers of ``graph`` as the file ``path``, whose nodes ONNX Runtime runs as they are."""

    graph: Graph
    path: Path

    @property
    def inputs(self) -> Sequence[NamedTensor]:
        return self._ports(self.graph.inputs)

    required_inputs = inputs

    @property
    def outputs(self) -> Sequence[NamedTensor]:
        return self._ports(self.graph.outputs)

    def _ports(self, names: Iterable[str]) -> Sequence[NamedTensor]:
        arrays = ((name, self.graph.array(name)) for name in names)
        return [NamedTensor(name=name, dtype=a.dtype, shape=a.shape) for name, a in arrays]

    def answer(self, inputs: Arrays) -> Arrays:
        return Reference(self.path, self.path).answer(inputs, optimise=False)

    def answers(
        self, inputs: Arrays, tolerance: Tolerance, random: str
    ) -> Iterator[tuple[object, Arrays]]:
        try:
            yield "its nodes as they are", self.answer(inputs)
        except SessionError as exc:
            raise TrialError(f"fails where ONNX Runtime answers: {exc}") from exc


def check_graph(for_c: GraphForC, progress: Progress = silent) -> list[str]:
    """Compare the graph that becomes C with its source; return lines: what is odd, or not compared.

    Raises:
        CompileError: ONNX Runtime cannot run the source, or the graph fails or answers otherwise.
    """
    reference = Reference(for_c.reference(), for_c.source.path)
    graph = _GraphAnswers(for_c.graph, for_c.written())
    comparison = comparison_of(reference.path, c_target(), "fp32")
    what = "the graph that becomes C"
    checker = Checker(graph, what, reference, graph, comparison, progress)
    return [note for note in [checker.check(required_only=True)] if note]
