"""Run a pack on a data set and count its answers, beside what is known and beside another pack's."""

import statistics
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from PIL import Image

from models.datasets.samples import DataError, Dataset, SampleError
from models.packs.pack import Pack
from pipeline.devices.base import Device
from pipeline.evaluating.counters import PictureOutputs, counter_of
from pipeline.execution.opened import opened
from pipeline.fitting.fit import fit
from pipeline.fitting.wanted import LEAST
from pipeline.program.prepare import prepare
from pipeline.schedule.architectures import ARCHITECTURES


@dataclass
class Evaluation:
    """What was found; ``broken``: samples that could not be read, and why. ``seconds``: of each sweep.

    ``not_numbers``: samples whose answers have NaN; a classifier's counts as a wrong one.
    """

    dataset: str
    samples: int = 0
    broken: list[str] = field(default_factory=list)
    not_numbers: list[str] = field(default_factory=list)
    seconds: list[float] = field(default_factory=list)
    figures: dict[str, Any] = field(default_factory=dict)

    def as_dict(self) -> dict[str, Any]:
        """Return it as JSON can hold it; times in milliseconds."""
        return {
            "dataset": self.dataset,
            "samples": self.samples,
            "broken": self.broken,
            "not_numbers": self.not_numbers,
            "sweep_ms": 1e3 * statistics.median(self.seconds) if self.seconds else None,
            **self.figures,
        }


def evaluate(
    pack: Pack,
    dataset: Dataset,
    device: Device,
    against: Pack | None = None,
    *,
    skip_broken: bool = True,
    step: Callable[[int, int], None] = lambda done, total: None,
) -> Evaluation:
    """Answer each sample of ``dataset`` once, with all weights in memory: bits are the same in every plan.

    ``against``: another pack, whose answers are compared. ``skip_broken``: or the first one is an error.
    ``step``: is called with how many samples are done, of how many.

    Raises:
        DataError: the pack takes no pictures, nothing can be counted, classes do not fit, or a sample is
            broken that may not be skipped.
    """
    counter = counter_of(pack, dataset, against)
    evaluation = Evaluation(dataset.name)
    with ExitStack() as stack:
        asked = [
            stack.enter_context(_asked(each, device))
            for each in (pack, against)
            if each is not None
        ]
        for done, sample in enumerate(dataset.samples(), 1):
            try:
                picture = sample.open()
                answers = [ask(picture) for ask in asked]
                counter.add(sample, answers[0])
            except SampleError as exc:
                if not skip_broken:
                    raise
                evaluation.broken.append(str(exc))
            else:
                evaluation.samples += 1
                evaluation.seconds.append(answers[0].seconds)
                if _has_nan(answers[0]):
                    evaluation.not_numbers.append(sample.name)
                if against is not None:
                    counter.compare(*answers)
            step(done, dataset.count)
    evaluation.figures = counter.figures()
    if not evaluation.samples:
        raise DataError(f"{dataset.name}: not one sample can be read: {evaluation.broken[0]}")
    if not evaluation.figures:
        raise DataError(f"{dataset.name}: there is nothing in its pictures to find")
    return evaluation


def _has_nan(answer: PictureOutputs) -> bool:
    """Return whether an output of floats has NaN."""
    return any(
        array.dtype.kind == "f" and bool(np.isnan(array).any()) for array in answer.outputs.values()
    )


@contextmanager
def _asked(pack: Pack, device: Device) -> Iterator[Callable[[Image.Image], PictureOutputs]]:
    """Yield what answers a picture."""
    program = prepare(pack, device)
    manifest = pack.manifest
    preprocess = manifest.preprocess
    if preprocess is None:
        raise DataError(f"{pack.folder}: compiled without --preprocess: it takes no pictures")
    plan = fit(program, ARCHITECTURES["pre"], LEAST).plan
    with opened(program, plan, device) as engine:

        def ask(picture: Image.Image) -> PictureOutputs:
            inputs = {manifest.required_inputs[0].name: preprocess.tensor(picture)}
            outputs, statistics = engine.run(inputs)
            return PictureOutputs(outputs, picture.size, statistics.delay_seconds)

        yield ask
