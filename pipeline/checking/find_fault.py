"""Find the pass of the compiler that makes a network wrong.

The network is computed between passes, in ONNX Runtime without optimisations, on the same drawn inputs. The
first pass after which results are farther from those before it than its class of error allows is at fault.
What it does not see is what devices run of the pieces in the end: that is compared by the check of a pack.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from numpy.typing import NDArray

from models.compiler.optimising.by_onnxruntime import typed
from models.compiler.passes.record import Compilation, Error, Pass
from models.compiler.passes.view import is_same
from models.compiler.writing.write import write_graph
from models.errors import CompileError
from models.graphs.graph import Graph
from models.graphs.traits import Traits, read_traits
from models.network.fields import Array
from models.runtime.sessions import SessionError, open_reference, run_session
from pipeline.checking.compare import difference
from pipeline.checking.comparison import Tolerance
from pipeline.checking.tolerance import tolerance_of
from pipeline.measuring.sweeps import Kind, random_tensors, with_compared

if TYPE_CHECKING:
    import onnxruntime as ort

Arrays = Mapping[str, NDArray[Any]]

_KINDS: tuple[Kind, ...] = ("random", "ones", "zeros")
# Behind operators that jump rounding may become another answer: there one of several draws decides.
_DRAWS = 3


class FaultFinder:
    """Refuses a compilation after the first pass that changes results too much: an observer of passes."""

    def __init__(self) -> None:
        self._last: _Boundary | None = None

    def before(self, work: Compilation, step: Pass) -> None:
        """Compute nothing: it was computed after the pass before."""

    def after(self, work: Compilation, step: Pass) -> None:
        """Compute the network, and compare.

        Raises:
            CompileError: results differ by more than ``step`` may change, or there is nothing to compare.
        """
        if not work.is_valid:
            return  # ONNX Runtime may refuse what was only read
        last, self._last = self._last, _boundary(work, self._last)
        if last is None or self._last is last:
            return
        tolerance = _allowed(step.error, last.tolerance)
        faults = [
            difference(answers, expected, tolerance)
            for answers, expected in zip(self._last.answers, last.answers, strict=True)
        ]
        if all(faults):
            raise CompileError(
                f"{work.path}: after the pass {step.name!r} {faults[0]}; its class is: {step.error}"
            )


@dataclass(frozen=True)
class _Boundary:
    """A network between passes, which ``key`` is, and its ``answers`` to ``inputs``.

    ``tolerance``: how far apart right answers of it are.
    """

    key: Graph
    tolerance: Tolerance
    inputs: tuple[Arrays, ...]
    answers: tuple[Arrays, ...]


def _boundary(work: Compilation, last: _Boundary | None) -> _Boundary:
    """Return the network as it is now; that is ``last`` where nothing changed.

    Raises:
        CompileError: ONNX Runtime refuses it or all that is drawn for it, or it draws numbers.
    """
    key = work.graph
    if last is not None and is_same(last.key, key):
        return last
    file = work.folder / "between.onnx"
    write_graph(work.graph, file)
    traits = read_traits(file)
    if traits.random:
        raise CompileError(f"{work.path}: node {traits.random} draws numbers: nothing to compare")
    try:
        session = open_reference(file)
        inputs = _drawn_inputs(work, session, traits) if last is None else last.inputs
        answers = tuple(run_session(session, item) for item in inputs)
    except SessionError as exc:
        message = " ".join(str(exc).split())
        raise CompileError(
            f"{work.path}: ONNX Runtime refuses it between passes: {message}"
        ) from exc
    return _Boundary(key, tolerance_of(file, traits, work.target, "fp32"), inputs, answers)


def _drawn_inputs(
    work: Compilation, session: "ort.InferenceSession", traits: Traits
) -> tuple[Arrays, ...]:
    """Return drawn inputs of the first kind that the network takes.

    They are numbers, or what may be an index, or the number to which one is compared.

    Raises:
        CompileError: ONNX Runtime refuses all of them.
    """
    ports = {port.name: typed(port.name, port.type, port.shape) for port in session.get_inputs()}
    arrays = {name: item if isinstance(item, Array) else item.array for name, item in ports.items()}
    ports_by_name = {name: array for name, array in arrays.items() if array is not None}
    refusal = ""
    kinds: list[tuple[Arrays, ...]] = [
        tuple(random_tensors(ports_by_name, seed, kind) for seed in range(_DRAWS))
        for kind in _KINDS
    ]
    compared = (with_compared(item, traits.compared) for item in kinds[0])
    kinds += zip(*compared, strict=True)
    for inputs in kinds:
        try:
            for item in inputs:
                run_session(session, item)
        except SessionError as exc:
            refusal = str(exc)
        else:
            return inputs
    raise CompileError(f"{work.path}: ONNX Runtime refuses what is drawn for it: {refusal}")


def _allowed(error: Error, tolerance: Tolerance) -> Tolerance:
    """Return by how much a pass of this class of error may change results, which round by ``tolerance``."""
    return Tolerance(0.0) if error == "same bits" else tolerance
