"""Running passes, one after the other, with others who look on."""

from collections.abc import Iterable, Sequence
from typing import Protocol

from models.compiler.passes.record import Compilation, Level, Pass
from models.progress import Progress, silent

#: What a user sees of the levels.
_STEPS: dict[Level, str] = {"meaning": "optimise", "layout": "optimise", "pieces": "cut"}


class Observer(Protocol):
    """Looks at a compilation around each pass, and changes nothing."""

    def before(self, work: Compilation, step: Pass) -> None: ...

    def after(self, work: Compilation, step: Pass) -> None: ...


def run(
    work: Compilation,
    passes: Sequence[Pass],
    progress: Progress = silent,
    observers: Iterable[Observer] = (),
) -> None:
    """Run ``passes`` on ``work``; ``progress`` is called with each.

    Raises:
        OnnxError: the model is not valid, or has an operator that ONNX Runtime does not have.
        CompileError: it cannot be compiled.
        Whatever an observer raises.
    """
    names = [step.name for step in passes]
    index = 0
    while index < len(passes):
        step = passes[index]
        progress(_STEPS[step.level], step.name)
        for observer in observers:
            observer.before(work, step)
        back = step.run(work)
        for observer in observers:
            observer.after(work, step)
        index = index + 1 if back is None else names.index(back)
