"""Run a pack once beside the model that it was compiled from, before anyone relies on it.

One after the other, never both at once: the source without optimisations, its weights mapped; then the
pack through the smallest ring. So this takes no more memory than compiling did.
"""

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from loader.errors import LoaderError
from models.errors import CompileError
from models.graphs.traits import Traits, read_traits
from models.packs.pack import Pack
from models.packs.records.fields import UNKNOWN
from models.progress import Progress, silent
from models.runtime.heap import trim_heap
from models.runtime.sessions import SessionError, open_reference, run_session
from pipeline.checking.compare import (
    Tolerance,
    difference,
    largest_error,
    loses_bits,
    tolerance_of,
)
from pipeline.devices.base import Device, DeviceError
from pipeline.execution.errors import EngineError
from pipeline.execution.opened import opened
from pipeline.fitting.fit import fit
from pipeline.fitting.wanted import LEAST
from pipeline.measuring.sample_inputs import Kind, drawn_inputs
from pipeline.schedule.architectures import ARCHITECTURES

Arrays = Mapping[str, NDArray[Any]]

# Numbers as images have them; then what an input that is an index, a count or a scale can also be.
_KINDS: tuple[Kind, ...] = ("random", "ones", "zeros")
_DRAWS = 3


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
        session = open_reference(self.path, optimise)
        try:
            return run_session(session, inputs)
        finally:
            del session
            trim_heap()


def check_pack(
    pack: Pack, reference: Reference, device: Device | None, progress: Progress = silent
) -> list[str]:
    """Compare ``pack`` on ``device`` with ``reference``; return lines: what is odd, or not compared.

    Args:
        pack: as it was compiled.
        reference: its source.
        device: what it was compiled for; None: only the source is run.
        progress: is told what runs.

    Raises:
        CompileError: ONNX Runtime cannot run the source, or the pack gives another answer.
    """
    traits = read_traits(reference.path)
    tolerance = tolerance_of(traits, pack.manifest.store)
    checker = _Checker(pack, reference, device, traits, tolerance, progress)
    notes = [checker.check(required_only=True)]
    if len(pack.manifest.required_inputs) < len(pack.manifest.inputs):
        notes.append(checker.check(required_only=False))
    notes.append(checker.stored())
    return [note for note in dict.fromkeys(notes) if note]


@dataclass(frozen=True)
class _Checker:
    pack: Pack
    reference: Reference
    device: Device | None
    traits: Traits
    tolerance: Tolerance
    progress: Progress
    #: Of each answer that was compared: largest_error.
    errors: list[float] = field(default_factory=list)

    def stored(self) -> str:
        """Return what storing weights with fewer bits has cost; nothing where none are lost."""
        store = self.pack.manifest.store
        if not loses_bits(store) or not self.errors:
            return ""
        return (
            f"stored as {store}: outputs differ from ONNX Runtime's by up to "
            f"{max(self.errors):.2%} of their largest value"
        )

    def check(self, required_only: bool) -> str:
        """Compare on drawn inputs; return why nothing was compared, or what is odd, or nothing.

        Operators that jump turn rounding into another answer: there one draw of several decides.
        """
        faults = []
        for inputs, expected in itertools.islice(self._questions(required_only), self._draws):
            self._check_declared(expected)
            if self.device is None:
                return ""
            fault = self._fault(inputs, expected, self._answer(inputs, self.device))
            if self.traits.random:
                return f"ran, but was not compared: node {self.traits.random} draws numbers"
            if not fault:
                return _remark(expected)
            if fault == _AMPLIFIED:
                return f"not compared: {fault}"
            faults.append(fault)
        if faults:
            if loses_bits(self.pack.manifest.store):
                return self._too_far(faults[0])
            raise CompileError(
                f"{self.reference.source}: the pack answers otherwise than ONNX Runtime: {faults[0]}; "
                "nothing was written; please report this (--no-check compiles without comparing)"
            )
        return "not compared with optional inputs: ONNX Runtime refuses those that were drawn"

    def _too_far(self, fault: str) -> str:
        """Return why nothing was compared, where rounded weights may jump to another answer.

        Raises:
            CompileError: they may not.
        """
        store = self.pack.manifest.store
        if self.traits.jumps:
            return f"not compared: stored as {store}, and a small difference can be another answer"
        raise CompileError(
            f"{self.reference.source}: stored as {store} its answer is another one: {fault}; nothing was "
            "written; store it with more bits (--no-check compiles without comparing)"
        )

    def _check_declared(self, expected: Arrays) -> None:
        """Refuse a file that says of an output what is not so when it is run."""
        for port in self.pack.manifest.outputs:
            shape = expected[port.name].shape
            known = [own in (UNKNOWN, real) for own, real in zip(port.shape, shape, strict=False)]
            if len(shape) != len(port.shape) or not all(known):
                raise CompileError(
                    f"{self.reference.source}: output {port.name!r} has shape {list(shape)} in ONNX "
                    f"Runtime; what the file declares makes it {list(port.shape)}"
                )

    @property
    def _draws(self) -> int:
        return _DRAWS if self.traits.jumps else 1

    def _questions(self, required_only: bool) -> Iterator[tuple[Arrays, Arrays]]:
        """Yield inputs that ONNX Runtime takes, and its answers.

        Raises:
            CompileError: it takes none that leave out what may be left out.
        """
        for seed in range(_DRAWS):
            answered = self._answered(seed, _KINDS if seed == 0 else _KINDS[:1], required_only)
            if answered is not None:
                yield answered

    def _answered(
        self, seed: int, kinds: Sequence[Kind], required_only: bool
    ) -> tuple[Arrays, Arrays] | None:
        reasons = []
        for kind in kinds:
            inputs = drawn_inputs(self.pack.manifest, seed, kind, required_only)
            try:
                return inputs, self._expected(inputs)
            except SessionError as exc:
                reasons.append(str(exc))
        if required_only and seed == 0:
            raise CompileError(f"{self.reference.source}: ONNX Runtime cannot run it: {reasons[0]}")
        return None

    def _expected(self, inputs: Arrays) -> Arrays:
        self.progress("check", "the source in ONNX Runtime")
        try:
            return self.reference.answer(inputs, optimise=False)
        except SessionError as exc:
            try:  # some kernels exist only for what optimising makes
                return self.reference.answer(inputs, optimise=True)
            except SessionError:
                raise exc from None

    def _fault(self, inputs: Arrays, expected: Arrays, got: Arrays) -> str:
        fault = difference(got, expected, self.tolerance)
        self.errors.append(largest_error(got, expected))
        if not fault or self.traits.random:
            return fault
        # Fused operators may compute otherwise (4-bit products, rounding of quantised numbers).
        optimised = self.reference.answer(inputs, optimise=True)
        if not difference(got, optimised, self.tolerance):
            return ""
        return _AMPLIFIED if difference(optimised, expected, self.tolerance) else fault

    def _answer(self, inputs: Arrays, device: Device) -> Arrays:
        self.progress("check", "the pack")
        try:
            return _streamed(self.pack, inputs, device)
        except (EngineError, DeviceError, LoaderError) as exc:
            raise CompileError(
                f"{self.reference.source}: the pack fails where ONNX Runtime answers: {exc}; nothing "
                "was written; please report this (--no-check compiles without comparing)"
            ) from exc


def _remark(answer: Arrays) -> str:
    """Return what is odd about an answer that both give; NaN equals NaN, and serves nobody."""
    for name, array in answer.items():
        if array.dtype.kind == "f" and np.isnan(array).any():
            return f"output {name!r} has NaN on drawn inputs, in ONNX Runtime too: are its weights right?"
    return ""


_AMPLIFIED = "ONNX Runtime itself answers otherwise with and without its optimisations"


def _streamed(pack: Pack, inputs: Arrays, device: Device) -> Arrays:
    """Return what ``pack`` answers through the smallest ring."""
    architecture = device.adapt(ARCHITECTURES["2s"])
    fitted = device.fitted(pack)
    plan = fit(fitted.manifest, architecture, LEAST).plan
    with opened(fitted, plan, device) as engine:
        return engine.run(inputs)[0]
