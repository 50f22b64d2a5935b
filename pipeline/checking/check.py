"""Compare what was compiled with the model that it was compiled from, before it is used.

One after the other, never two at once: the source without optimisations, its weights mapped; then the
pack in each setting in which it will be served, where there is room (trials.py), or the graph
that becomes C (check_graph.py).
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

import numpy as np
from numpy.typing import NDArray

from models.compiler.writing.write import write_optimised
from models.errors import CompileError, OnnxError
from models.images.preprocess import Preprocess
from models.network.fields import UNKNOWN
from models.network.node import NamedTensor
from models.packs.names import Store, loses_bits
from models.packs.pack import Pack
from models.packs.records.ports import Port
from models.progress import Progress, silent
from models.runtime.heap import trim_heap
from models.runtime.sessions import SessionError, open_reference, run_session
from pipeline.checking.compare import difference, largest_error
from pipeline.checking.comparison import ComparisonRules, Tolerance
from pipeline.checking.trials import TrialError, Trials
from pipeline.measuring.sweeps import HasInputs, Kind, random_inputs, with_compared

if TYPE_CHECKING:
    from PIL.Image import Image

Arrays = Mapping[str, NDArray[Any]]

# Numbers as images have them; then what an input that is an index, a count or a scale can also be.
_KINDS: tuple[Kind, ...] = ("random", "ones", "zeros")
_DRAWS = 3
# Of the largest value: what is less is written as 0.00 %.
_LEAST_SAID = 5e-5
# Where ONNX Runtime differs from itself by more of the largest value, nothing else can be told from it:
# answers to other inputs, of 3 to 24 quantised convolutions, were 0.39 to 1 of it apart.
_MOST_OPEN = 0.25
# An answer that is farther off than so many times what ONNX Runtime differs from itself is wrong. Of right
# answers of these, to inputs off by 1e-4 of themselves, none was more than 1.8 times as far off as two
# others from each other; layers that amplify unevenly have the rest.
_FARTHEST = 10
_ADVICE = "--no-check leaves the comparison out"

#: Makes pictures like those to come.
Pictures: TypeAlias = "Callable[[], Iterable[Image]]"


@dataclass(frozen=True)
class Reference:
    """The model in the file ``path``; errors call it ``source``."""

    path: Path
    source: Path

    def answer(self, inputs: Arrays, optimise: bool) -> Arrays:
        """Return its outputs; strings are objects.

        Raises:
            SessionError: ONNX Runtime refuses the model, or these inputs.
        """
        session = open_reference(self._optimised if optimise else self.path)
        try:
            return run_session(session, inputs)
        finally:
            del session
            trim_heap()

    @cached_property
    def _optimised(self) -> Path:
        try:
            return write_optimised(self.path)
        except OnnxError as exc:
            raise SessionError(str(exc)) from exc


class HasPorts(HasInputs, Protocol):
    """A network whose answers are compared."""

    @property
    def outputs(self) -> Sequence[Port | NamedTensor]: ...


class HasAnswers(Protocol):
    """What is compared: ``Trials`` of a pack, or the graph that becomes C."""

    def answer(self, inputs: Arrays) -> Arrays:
        """Return its answer."""

    def answers(
        self, inputs: Arrays, tolerance: Tolerance, random: str
    ) -> Iterable[tuple[object, Arrays]]:
        """Yield its answers, each with the setting that it is of.

        Raises:
            TrialError: it fails.
        """


def check_pack(
    pack: Pack,
    reference: Reference,
    trials: Trials | None,
    progress: Progress = silent,
    pictures: "Pictures | None" = None,
    comparison: ComparisonRules | None = None,
) -> list[str]:
    """Compare ``pack`` with ``reference``; return lines: what is odd, or not compared.

    Args:
        pack: as it was compiled.
        reference: its source.
        trials: run it on what it was compiled for; None: only the source is run.
        progress: is called with what runs.
        pictures: on which is measured what storing weights with fewer bits costs; None: on what is drawn.
        comparison: how; None: as ``comparison_of`` finds.

    Raises:
        MemoryError: the pack would take more than is free.
        CompileError: ONNX Runtime cannot run the source, the pack answers otherwise or takes no pictures.
        Whatever ``pictures`` raises.
    """
    manifest = pack.manifest
    if comparison is None:
        from pipeline.checking.tolerance import comparison_of  # the compiler's passes

        comparison = comparison_of(reference.path, manifest.target, manifest.store)
    checker = Checker(
        *(manifest, "the pack", reference, trials, comparison, progress),
        *(manifest.store, manifest.preprocess, pictures),
    )
    notes = [checker.check(required_only=True)]
    if len(manifest.required_inputs) < len(manifest.inputs):
        notes.append(checker.check(required_only=False))
    if trials is not None and not trials.once:
        notes.append(checker.stored())
    notes += [] if trials is None else trials.notes
    return [note for note in dict.fromkeys(notes) if note]


@dataclass(frozen=True)
class Checker:
    """Compares ``trials``, answers of ``what`` with the ports of ``network``, with ``reference``."""

    network: HasPorts
    what: str
    reference: Reference
    trials: HasAnswers | None
    comparison: ComparisonRules
    progress: Progress
    store: Store = "fp32"
    preprocess: Preprocess | None = None
    pictures: "Pictures | None" = None
    #: Of each answer that was compared: largest_error.
    errors: list[float] = field(default_factory=list)

    def stored(self) -> str:
        """Return what storing weights with fewer bits has cost; nothing where it is nothing."""
        if not loses_bits(self.store) or self.trials is None:
            return ""
        errors, inputs = (
            self.errors,
            "drawn numbers, not pictures (--calibrate DIR measures on yours)",
        )
        if self.pictures is not None:
            errors = list(self._errors_on(self.pictures(), self.trials))
            inputs = f"{len(errors)} picture{'s' if len(errors) > 1 else ''} of --calibrate"
        most = max(errors, default=0.0)
        if most < _LEAST_SAID:
            return ""
        return (
            f"stored as {self.store}: outputs differ from ONNX Runtime's by up to {most:.2%} of their "
            f"largest value on {inputs}"
        )

    def _errors_on(self, pictures: "Iterable[Image]", trials: HasAnswers) -> Iterator[float]:
        """Yield largest_error of each picture.

        Raises:
            CompileError: the pack takes none, or answers with another one.
        """
        ports, preprocess = self.network.required_inputs, self.preprocess
        if preprocess is None or [port.shape for port in ports] != [preprocess.shape]:
            raise CompileError(
                f"{self.reference.source}: --calibrate needs --preprocess: how a picture becomes the input"
            )
        for picture in pictures:
            inputs = {ports[0].name: preprocess.apply(picture)}
            expected = self.expected(inputs)
            with self._refusing():
                got = trials.answer(inputs)
            fault = difference(got, expected, self.comparison.tolerance)
            if fault and not self.comparison.jumps:
                raise self._refusal(fault)
            yield largest_error(got, expected)

    def check(self, required_only: bool) -> str:
        """Compare on drawn inputs; return why nothing was compared, or what is odd, or nothing.

        Operators that jump turn rounding into another answer: there one draw of several decides. So it
        does where ONNX Runtime differs from itself.
        """
        faults: list[str] = []
        opens: list[str] = []
        for question in self._questions(required_only):
            self._check_declared(question.expected)
            if self.trials is None:
                return ""
            fault, is_open = self._first_fault(question, self.trials)
            if self.comparison.random:
                return f"ran, but was not compared: node {self.comparison.random} draws numbers"
            if not fault:
                return _remark(question.expected)
            (opens if is_open else faults).append(fault)
            if not (self.comparison.jumps or is_open):
                break
        if opens:
            return f"not compared: {opens[0]}"
        if faults:
            if loses_bits(self.store):
                return self._too_far(faults[0])
            raise CompileError(
                f"{self.reference.source}: {self.what} answers otherwise than ONNX Runtime {faults[0]}; "
                f"nothing was written; please report this ({_ADVICE})"
            )
        return "not compared with optional inputs: ONNX Runtime refuses those that were drawn"

    def _too_far(self, fault: str) -> str:
        """Return why nothing was compared, where rounded weights may jump to another answer.

        Raises:
            CompileError: they may not, and no pictures decide.
        """
        if self.comparison.jumps:
            return f"not compared: stored as {self.store}, and a small difference can be another answer"
        if self.pictures is not None:
            return ""
        raise self._refusal(
            f"{fault}, on drawn numbers (--calibrate DIR measures on your pictures)"
        )

    def _refusal(self, fault: str) -> CompileError:
        return CompileError(
            f"{self.reference.source}: stored as {self.store} its answer is another one: {fault}; nothing "
            f"was written; store it with more bits ({_ADVICE})"
        )

    def _check_declared(self, expected: Arrays) -> None:
        """Refuse a file that says of an output what is not so when it is run."""
        for port in self.network.outputs:
            shape = expected[port.name].shape
            known = [own in (UNKNOWN, real) for own, real in zip(port.shape, shape, strict=False)]
            if len(shape) != len(port.shape) or not all(known):
                raise CompileError(
                    f"{self.reference.source}: output {port.name!r} has shape {list(shape)} in ONNX "
                    f"Runtime; what the file declares makes it {list(port.shape)}"
                )

    def _questions(self, required_only: bool) -> Iterator["_Question"]:
        """Yield inputs that ONNX Runtime takes, with its answers.

        Raises:
            CompileError: it takes none that leave out what may be left out.
        """
        for seed in range(_DRAWS):
            question = self._drawn(seed, _KINDS if seed == 0 else _KINDS[:1], required_only)
            if question is not None:
                yield question

    def _drawn(self, seed: int, kinds: Sequence[Kind], required_only: bool) -> "_Question | None":
        reasons = []
        for inputs in self._inputs(seed, kinds, required_only):
            try:
                return _Question(inputs, self.expected(inputs), self)
            except SessionError as exc:
                reasons.append(str(exc))
        if required_only and seed == 0:
            raise CompileError(f"{self.reference.source}: ONNX Runtime cannot run it: {reasons[0]}")
        return None

    def _inputs(
        self, seed: int, kinds: Sequence[Kind], required_only: bool
    ) -> Iterator[dict[str, NDArray[Any]]]:
        for kind in kinds:
            yield random_inputs(self.network, seed, kind, required_only)
        drawn = random_inputs(self.network, seed, required_only=required_only)
        yield from with_compared(drawn, self.comparison.compared)

    def expected(self, inputs: Arrays) -> Arrays:
        """Return what the source answers without optimisations; with them where it cannot without.

        Raises:
            SessionError: ONNX Runtime refuses the model, or these inputs.
        """
        self.progress("check", "the source in ONNX Runtime")
        try:
            return self.reference.answer(inputs, optimise=False)
        except SessionError as exc:
            try:  # some kernels exist only for what optimising makes
                return self.reference.answer(inputs, optimise=True)
            except SessionError:
                raise exc from None

    def _first_fault(self, question: "_Question", trials: HasAnswers) -> tuple[str, bool]:
        """Return what ``_fault`` says of the first wrong answer of the pack; if none is, of the first open.

        Raises:
            MemoryError: the pack takes more than is free. CompileError: it fails, or answers in two ways.
        """
        open_fault = ""
        with self._refusing():
            for setting, outputs in trials.answers(
                question.inputs, self.comparison.tolerance, self.comparison.random
            ):
                fault, is_open = self._fault(question, outputs)
                if fault and not is_open:
                    return f"with {setting}: {fault}", False
                open_fault = open_fault or fault
        return open_fault, bool(open_fault)

    def _fault(self, question: "_Question", got: Arrays) -> tuple[str, bool]:
        """Return how the answer differs, if it does, and whether ONNX Runtime differs from itself."""
        expected = question.expected
        fault = difference(got, expected, self.comparison.tolerance)
        self.errors.append(largest_error(got, expected))
        if not fault or self.comparison.random:
            return "", False
        # Fused operators may compute otherwise (4-bit products, rounding of quantised numbers).
        if not difference(got, question.optimised, self.comparison.tolerance):
            return "", False
        other, how = question.optimised, "with and without its optimisations"
        if not difference(other, expected, self.comparison.tolerance):
            # Deep networks of roundings make another answer of the last digit of a sum.
            other, how = question.nudged, "where inputs differ by what roundings may"
        own = difference(other, expected, self.comparison.tolerance)
        if not own:
            return fault, False
        # Of two right answers that are so far apart a third may be as far from either.
        apart = largest_error(other, expected)
        if 0 < apart <= _MOST_OPEN:
            open_ = replace(self.comparison.tolerance, fraction=apart)
            if not (difference(got, expected, open_) and difference(got, other, open_)):
                return "", False
            nearest = min(largest_error(got, expected), largest_error(got, other))
            if nearest > max(_FARTHEST * apart, self.comparison.tolerance.fraction):
                return f"{fault}; ONNX Runtime {how}: {own}", False
        return f"ONNX Runtime itself answers otherwise {how}: {own}", True

    @contextmanager
    def _refusing(self) -> Iterator[None]:
        """Name the source where what is compared fails."""
        self.progress("check", self.what)
        source = self.reference.source
        try:
            yield
        except MemoryError as exc:
            raise MemoryError(
                f"{source}: to check its pack {exc}; nothing was written; compile it where there is as "
                "much, or with --no-check"
            ) from exc
        except TrialError as exc:
            raise CompileError(
                f"{source}: {self.what} {exc}; nothing was written; please report this ({_ADVICE})"
            ) from exc


class _Question:
    """A request, and what ONNX Runtime answers: as ``check`` asks it, and in other ways that are right."""

    def __init__(self, inputs: Arrays, expected: Arrays, check: Checker) -> None:
        self.inputs = inputs
        self.expected = expected
        self._check = check

    @cached_property
    def optimised(self) -> Arrays:
        """What the optimised source answers; ``expected`` where ONNX Runtime refuses it."""
        try:
            return self._check.reference.answer(self.inputs, optimise=True)
        except SessionError:
            return self.expected

    @cached_property
    def nudged(self) -> Arrays:
        """What the source answers for inputs that are off by what roundings may be."""
        return self._check.expected(_nudged(self.inputs, self._check.comparison.tolerance.nudge))


def _nudged(inputs: Arrays, by: float) -> Arrays:
    """Return ``inputs`` with floats that are off by so much of themselves."""
    generator = np.random.default_rng(0)
    return {
        name: (array * (1 + generator.choice((-by, by), array.shape))).astype(array.dtype)
        if array.dtype.kind == "f"
        else array
        for name, array in inputs.items()
    }


def _remark(answer: Arrays) -> str:
    """Return what is odd about an answer that both give; NaN equals NaN, and is of no use."""
    for name, array in answer.items():
        if array.dtype.kind == "f" and np.isnan(array).any():
            return f"output {name!r} has NaN on drawn inputs, in ONNX Runtime too: are its weights right?"
    return ""
