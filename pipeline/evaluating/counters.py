"""The counter of answers for each kind of model."""

import collections
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from models.datasets.samples import DataError, Dataset, Marked, Sample
from models.detection.boxes import Box, BoxLimits, find_boxes
from models.detection.mean_precision import MeanPrecision, TrueObject
from models.detection.recipe import Detection
from models.images.placement import Size
from models.images.preprocess import Preprocess
from models.packs.pack import Pack
from models.packs.records.ports import Classification
from pipeline.execution.given import Arrays

# Which output of a model a class of a data set is.


def class_numbers(
    names: Sequence[str], labels: Sequence[str], outputs: int, classes: Sequence[str] = ()
) -> dict[str, int]:
    """Return the number of each of ``names``, as ``_known_numbers``.

    Raises:
        DataError: one of them is no class of the model, or several are called like it.
    """
    numbers = _known_numbers(names, labels, outputs, classes)
    missing = [name for name in names if name not in numbers]
    if missing:
        has = list(_known(names, labels, outputs, classes))
        raise DataError(f"no class of the model: {_few(missing)}; it has {_few(has)}")
    return numbers


def _known_numbers(
    names: Iterable[str], labels: Sequence[str], outputs: int, classes: Sequence[str] = ()
) -> dict[str, int]:
    """Return the number of each of ``names`` that is a class of the model.

    That is by the model's ``labels``, whatever their case. A model without labels has numbers for names, or
    the data set's ``classes`` in their order if there are as many as ``outputs``.

    Raises:
        DataError: several classes of the model are called like one of them.
    """
    known = _known(names, labels, outputs, classes)
    return {name: known[_plain(name)] for name in names if _plain(name) in known}


def _known(
    names: Iterable[str], labels: Sequence[str], outputs: int, classes: Sequence[str]
) -> dict[str, int]:
    if labels:
        times = collections.Counter(map(_plain, labels))
        if several := [name for name in names if times[_plain(name)] > 1]:
            raise DataError(f"several classes of the model have this name: {_few(several)}")
        return {_plain(label): number for number, label in enumerate(labels)}
    if len(classes) == outputs and not all(name.isdecimal() for name in names):
        return {_plain(name): number for number, name in enumerate(classes)}
    return {str(number): number for number in range(outputs)}


def _few(names: Sequence[str]) -> str:
    return ", ".join(map(repr, names[:4])) + (" ..." if len(names) > 4 else "")


def _plain(name: str) -> str:
    return " ".join(name.casefold().replace("_", " ").split())


# Figures of answers, counted sample by sample; no pack, no files.

_BEST = 5


class Scores:
    """Classes that a classifier gives beside those that samples have: accuracy, confusion."""

    def __init__(self, names: Sequence[str]) -> None:
        self._names = names
        self._count = self._first = self._among = 0
        self._confusion: collections.Counter[tuple[int, int]] = collections.Counter()

    def add(self, scores: NDArray[Any], truth: int) -> None:
        """Count one answer: scores of all classes, any shape. With NaN it has no class, and is wrong."""
        self._count += 1
        if np.isnan(scores).any():
            return
        order = np.argsort(-scores.ravel(), kind="stable")[:_BEST].tolist()
        self._first += order[0] == truth
        self._among += truth in order
        self._confusion[truth, order[0]] += 1

    def figures(self) -> dict[str, Any]:
        """Return accuracies from 0 to 1, and how often each class was taken for which; {} of no answers."""
        if not self._count:
            return {}
        return {
            "labelled": self._count,
            "top1": self._first / self._count,
            **({"top5": self._among / self._count} if len(self._names) > _BEST else {}),
            "confusion": [
                {"truth": self._names[truth], "answer": self._names[answer], "count": count}
                for (truth, answer), count in sorted(self._confusion.items())
            ],
        }


class Agreement:
    """Answers of two classifiers: how often their best class is the same, and how far scores are apart."""

    def __init__(self) -> None:
        self._count = self._same = 0
        self._largest = 0.0

    def add(self, scores: NDArray[Any], others: NDArray[Any]) -> None:
        """Count one answer of each; with NaN in one of them they do not agree."""
        self._count += 1
        if np.isnan(scores).any() or np.isnan(others).any():
            return
        self._same += int(scores.ravel().argmax()) == int(others.ravel().argmax())
        # Equal infinities, as the logarithms of zero that both give, are no distance apart.
        differ = scores != others
        apart = np.abs(scores[differ].astype(np.float64) - others[differ].astype(np.float64))
        self._largest = max(self._largest, float(apart.max(initial=0)))

    def figures(self) -> dict[str, Any]:
        """Return the part that agrees, and the largest difference of a score, where that is a number."""
        if not self._count:
            return {}
        apart = {"largest_difference": self._largest} if math.isfinite(self._largest) else {}
        return {"compared": self._count, "top1": self._same / self._count, **apart}


class BoxTally:
    """Boxes of a detector beside objects that are there: average precision at an overlap of a half."""

    def __init__(self, names: Sequence[str]) -> None:
        self._names = names
        self._precision = MeanPrecision()
        self._pictures = 0

    def add(self, boxes: Sequence[Box], there: Sequence[TrueObject]) -> None:
        """Count one picture."""
        self._pictures += 1
        self._precision.add(boxes, there)

    def figures(self) -> dict[str, Any]:
        """Return the mean over classes, and each class's; {} where there was nothing to find."""
        by_class = self._precision.by_class()
        if not by_class:
            return {}
        return {
            "pictures": self._pictures,
            "map50": self._precision.mean(),
            "ap50": {self._names[index]: value for index, value in by_class.items()},
        }


def targets_of(marks: Sequence[Marked], classes: Mapping[str, int]) -> list[TrueObject]:
    """Return ``marks`` with the numbers of their classes.

    Raises:
        KeyError: one has a class that is not among ``classes``.
    """
    return [TrueObject(classes[mark.name], mark.edges, mark.difficult) for mark in marks]


def _targets_seen(boxes: Sequence[Box]) -> list[TrueObject]:
    """Return boxes of another detector as if they were there."""
    return [TrueObject(box.index, box.edges) for box in boxes]


# A counter for each kind of model.

# Boxes below count for nothing: VOC's way counts all, and weak ones change little but the time.
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
        self._numbers = _known_numbers(objects, labels, classes)
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
        there = _targets_seen(self._other.boxes(other, None))
        self._agreed.add(self._own.boxes(answer, _LEAST_SCORE), there)

    def figures(self) -> dict[str, Any]:
        figures = _with_agreement(self._marked.figures(), self._agreed.figures())
        return figures | {"left_out": self._left_out} if figures and self._left_out else figures


def _with_agreement(figures: dict[str, Any], agreement: dict[str, Any]) -> dict[str, Any]:
    return figures | ({"agreement": agreement} if agreement else {})
