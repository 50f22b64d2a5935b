"""Who counts the answers of which kind of model."""

import math
from dataclasses import dataclass
from typing import Any, Protocol

from models.datasets.samples import DataError, Dataset, Sample
from models.detection.boxes import Box, BoxLimits, find_boxes
from models.detection.recipe import Detection
from models.images.placement import Size
from models.images.preprocess import Preprocess
from models.packs.pack import Pack
from models.packs.records.ports import Classification
from pipeline.evaluating.class_names import class_numbers, known_numbers
from pipeline.evaluating.tallies import Agreement, BoxTally, Scores, targets_of, targets_seen
from pipeline.execution.given import Arrays

# Boxes below count for nothing: VOC's way asks for all, and weak ones change little but the time.
_LEAST_SCORE = 0.01
_MOST_BOXES = 300


@dataclass(frozen=True)
class PictureOutputs:
    """Outputs for a picture of this size, and how long the sweep took."""

    outputs: Arrays
    size: Size
    seconds: float


class Counter(Protocol):
    """Counts answers of one kind of model."""

    def add(self, sample: Sample, answer: PictureOutputs) -> None:
        """Count ``answer`` beside what is known of ``sample``.

        Raises:
            SampleError: the sample is broken.
        """

    def compare(self, answer: PictureOutputs, other: PictureOutputs) -> None:
        """Count ``answer`` beside that of another model."""

    def figures(self) -> dict[str, Any]:
        """Return what was counted."""


def counter_of(pack: Pack, dataset: Dataset, against: Pack | None = None) -> Counter:
    """Return what counts the answers of ``pack``, and compares them with those of ``against``.

    Raises:
        DataError: one of them answers without classes, or they answer differently, or the classes of the
            data set are not those of the model: of a classifier all have to be, of a detector one.
    """
    one, other = _recipe(pack), _recipe(against or pack)
    if against is None:
        _check_known(pack, dataset, isinstance(one, Classification))
    else:
        _check_alike(pack, against)
    if isinstance(one, Classification) and isinstance(other, Classification):
        return _Classifier(pack, dataset, one, other)
    assert isinstance(one, _Sight)
    assert isinstance(other, _Sight)
    return _Detector(dataset, one, other, is_compared=against is not None)


def _check_alike(pack: Pack, against: Pack) -> None:
    """Check that the answers of both are of the same kind, with as many classes.

    Raises:
        DataError: they are not.
    """
    (one, classes), (other, others) = ((_recipe(each), _classes(each)) for each in (pack, against))
    packs = f"{pack.folder} and {against.folder} cannot be compared"
    if isinstance(one, Classification) != isinstance(other, Classification):
        raise DataError(f"{packs}: one classifies, the other detects")
    if classes != others:
        raise DataError(f"{packs}: they have {classes} and {others} classes")


def _classes(pack: Pack) -> int:
    """Return how many classes the answers of ``pack`` have."""
    recipe = _recipe(pack)
    if isinstance(recipe, _Sight):
        return recipe.detection.classes
    scores = next(port for port in pack.manifest.outputs if port.name == recipe.output)
    return math.prod(scores.shape)


def _check_known(pack: Pack, dataset: Dataset, classifies: bool) -> None:
    """Check that of the pictures of ``dataset`` is known what ``pack`` answers.

    Raises:
        DataError: it is not.
    """
    if dataset.classes if classifies else dataset.marked:
        return
    known = "classes are" if dataset.classes else "boxes are" if dataset.marked else "nothing is"
    raise DataError(
        f"{dataset.name}: {known} known of its pictures, while {pack.folder} "
        f"{'classifies' if classifies else 'finds boxes'}: only agreement can be counted (--against PACK)"
    )


@dataclass(frozen=True)
class _Sight:
    """How a detector sees."""

    detection: Detection
    preprocess: Preprocess

    def boxes(self, answer: PictureOutputs, score: float | None) -> list[Box]:
        """Return the best boxes of ``score`` or more; None: as the model is set."""
        limits = BoxLimits(score=score, count=_MOST_BOXES)
        return find_boxes(answer.outputs, self.detection, self.preprocess, answer.size, limits)


def _recipe(pack: Pack) -> Classification | _Sight:
    manifest = pack.manifest
    if manifest.preprocess is None:
        raise DataError(f"{pack.folder}: compiled without --preprocess: it takes no pictures")
    if manifest.detection is not None:
        return _Sight(manifest.detection, manifest.preprocess)
    if manifest.classification is None:
        raise DataError(
            f"{pack.folder}: neither classifies nor detects: its answers have no classes"
        )
    return manifest.classification


class _Classifier:
    """Counts the answers of a classifier."""

    def __init__(
        self, pack: Pack, dataset: Dataset, own: Classification, other: Classification
    ) -> None:
        self._output, self._other = own.output, other.output
        count = _classes(pack)
        self._numbers = class_numbers(dataset.classes, own.labels, count, dataset.classes)
        named = {number: name for name, number in self._numbers.items()}
        names = own.labels or [named.get(number, str(number)) for number in range(count)]
        self._scores = Scores(names)
        self._agreement = Agreement()

    def add(self, sample: Sample, answer: PictureOutputs) -> None:
        if sample.label is not None:
            self._scores.add(answer.outputs[self._output], self._numbers[sample.label])

    def compare(self, answer: PictureOutputs, other: PictureOutputs) -> None:
        one, two = answer.outputs[self._output].ravel(), other.outputs[self._other].ravel()
        self._agreement.add(one, two)

    def figures(self) -> dict[str, Any]:
        return _with_agreement(self._scores.figures(), self._agreement.figures())


class _Detector:
    """Counts the boxes of a detector.

    Objects of classes that the model does not have are left out, as VOC's own tool does: the mean is over
    the classes that both have.
    """

    def __init__(self, dataset: Dataset, own: _Sight, other: _Sight, *, is_compared: bool) -> None:
        self._own, self._other = own, other
        labels, classes = own.detection.labels, own.detection.classes
        objects = dataset.objects()
        self._numbers = known_numbers(objects, labels, classes)
        self._left_out = {name: objects[name] for name in objects if name not in self._numbers}
        if self._left_out and not self._numbers and not is_compared:
            class_numbers(list(objects), labels, classes)  # which says what there is instead
        names = labels or tuple(map(str, range(classes)))
        self._marked, self._agreed = BoxTally(names), BoxTally(names)

    def add(self, sample: Sample, answer: PictureOutputs) -> None:
        if sample.marks is None:
            return
        known = [mark for mark in sample.marks() if mark.name in self._numbers]
        self._marked.add(self._own.boxes(answer, _LEAST_SCORE), targets_of(known, self._numbers))

    def compare(self, answer: PictureOutputs, other: PictureOutputs) -> None:
        """Take what the other one shows to users as what is there."""
        there = targets_seen(self._other.boxes(other, None))
        self._agreed.add(self._own.boxes(answer, _LEAST_SCORE), there)

    def figures(self) -> dict[str, Any]:
        figures = _with_agreement(self._marked.figures(), self._agreed.figures())
        return figures | {"left_out": self._left_out} if figures and self._left_out else figures


def _with_agreement(figures: dict[str, Any], agreement: dict[str, Any]) -> dict[str, Any]:
    return figures | ({"agreement": agreement} if agreement else {})
