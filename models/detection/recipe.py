"""What a detector's outputs hold: the recipe that the manifest keeps."""

import math
from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Annotated, Literal, NamedTuple, Self

from pydantic import BaseModel, ConfigDict, Field, FiniteFloat, PositiveInt, model_validator

from models.network.fields import UNKNOWN, Count
from models.toml_files import read_recipe

Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]
Fraction = Annotated[float, Field(ge=0, le=1, allow_inf_nan=False)]
#: Element type and shape of outputs by name.
Forms = Mapping[str, tuple[str, tuple[int, ...]]]

_WHOLE = ("int32", "int64", "uint8", "float32")
_BOX = 4


class _Record(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class _OneOutput(_Record):
    """A head of which one output has everything."""

    output: str

    @property
    def outputs(self) -> tuple[str, ...]:
        return (self.output,)

    def fits(self, shape: tuple[int, ...]) -> bool:
        raise NotImplementedError

    def needs(self) -> str:
        """Return what shape of the output would do, and why."""
        raise NotImplementedError

    def fault(self, forms: Forms) -> str | None:
        """Return which of the outputs, which are there, does not fit, and why; None: all do."""
        dtype, shape = forms[self.output]
        if dtype == "float32" and self.fits(shape):
            return None
        return f"output {self.output!r} is {dtype}{list(shape)}; {self.needs()}"


class DetectionHead(_OneOutput):
    """One detection layer, decoded by us: ``output`` is [1, anchors * (5 + classes), rows, columns].

    Each anchor has the planes x, y, width, height, objectness and one a class. ``anchors`` are (width,
    height), in cells for a region layer, in pixels of the network's input for a yolo layer.
    ``activated``: the output is what Darknet's layer gives; otherwise what it receives.
    """

    kind: Literal["region", "yolo"]
    anchors: Annotated[tuple[tuple[Positive, Positive], ...], Field(min_length=1)]
    classes: PositiveInt
    new_coords: bool = False
    scale_x_y: Positive = 1.0
    softmax: bool = True
    activated: bool = True

    @property
    def planes(self) -> int:
        """Channels that the output must have."""
        return len(self.anchors) * (5 + self.classes)

    def fits(self, shape: tuple[int, ...]) -> bool:
        return len(shape) == 4 and shape[:2] == (1, self.planes) and min(shape) > 0

    def needs(self) -> str:
        return (
            f"{len(self.anchors)} anchors and {self.classes} classes need float32[1, {self.planes}, "
            "rows, columns]"
        )


class AnchorLevel(_Record):
    """Boxes that predictions are relative to: one of each of ``sizes`` in each cell of ``grid``.

    ``grid``: (columns, rows). ``sizes``: (width, height) in pixels of the network's input; none: one of
    ``stride``. Cell i has its centre at (i + ``offset``) x ``stride`` pixels, where there is a stride, and
    else in that part of the input that ``grid`` cuts evenly.
    """

    grid: tuple[PositiveInt, PositiveInt]
    sizes: tuple[tuple[Positive, Positive], ...] = ()
    stride: Positive | None = None
    offset: FiniteFloat = 0.5

    @property
    def anchors(self) -> tuple[tuple[float, float], ...]:
        """Width and height of those in each cell."""
        return self.sizes or ((self.stride or 1.0,) * 2,)

    @property
    def count(self) -> int:
        return math.prod(self.grid) * len(self.anchors)

    @model_validator(mode="after")
    def _sized(self) -> Self:
        if not self.sizes and self.stride is None:
            raise ValueError("neither sizes nor a stride")
        return self


class BoxListing(NamedTuple):
    """How many boxes an output lists, and how many numbers of each."""

    boxes: int
    numbers: int


class BoxesHead(_Record):
    """Boxes of ``classes`` classes in the output ``boxes``, their scores in ``scores``, which may be one.

    ``layout``: "rows" are [1, n, k], [n, k] or [1, rows, columns, anchors * k], where one number is all
    there is also [1, n] or [n]; "columns" are [1, k, n]; "planes" [1, anchors * k, rows, columns]. Boxes
    begin ``boxes_at`` and scores ``scores_at`` numbers behind the first of a row; ``objectness``: where a
    number stands by which scores are multiplied. ``background``: which class is none. ``indices``: the
    output with the class of each box, of which there is one score then.

    ``box``: "corners" (left, top, right, bottom) or "centre" (x, y, width, height), both in ``unit``.
    Relative to ``anchors``, which are listed by level, row, column and size (``sizes_first``: by level,
    size, row, column), are "offsets" of centre and size, times ``variances``, of sizes the logarithm
    (unless ``linear``), and "distances" of the edges from the centre; where ``bins`` is above 1 these are
    means of a distribution over 0, 1, ... that is given by logarithms. ``axes`` "yx": y comes before x,
    height before width. ``clip_anchors``: none is outside the input, or larger.
    """

    kind: Literal["boxes"]
    boxes: str
    scores: str
    classes: PositiveInt
    indices: str | None = None
    layout: Literal["rows", "columns", "planes"] = "rows"
    boxes_at: Count = 0
    scores_at: Count = 0
    objectness: Count | None = None
    background: Literal["first", "last"] | None = None
    activation: Literal["none", "sigmoid", "softmax"] = "none"
    box: Literal["corners", "centre", "offsets", "distances"] = "corners"
    axes: Literal["xy", "yx"] = "xy"
    unit: Literal["input", "pixels"] = "input"
    anchors: tuple[AnchorLevel, ...] = ()
    sizes_first: bool = False
    clip_anchors: bool = False
    variances: tuple[Positive, Positive] = (0.1, 0.2)
    linear: bool = False
    bins: PositiveInt = 1

    @property
    def listing(self) -> "BoxesHead":
        return self

    @property
    def outputs(self) -> tuple[str, ...]:
        names = (self.boxes, self.scores, self.indices)
        return tuple(dict.fromkeys(name for name in names if name is not None))

    @property
    def columns(self) -> int:
        """How many scores a box has."""
        return 1 if self.indices else self.classes + (self.background is not None)

    @property
    def is_single(self) -> bool:
        """Whether the output with scores has nothing else, and one for each box."""
        return self.boxes != self.scores and self._score_end == 1

    @property
    def _box_end(self) -> int:
        return self.boxes_at + _BOX * self.bins

    @property
    def _score_end(self) -> int:
        return self.scores_at + self.columns

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if (self.box in ("offsets", "distances")) != bool(self.anchors):
            raise ValueError(
                f"box {self.box!r} goes {'without' if self.anchors else 'with'} anchors"
            )
        if self.bins > 1 and self.box != "distances":
            raise ValueError("bins are of distances")
        if self.layout == "planes" and len(self.anchors) != 1:
            raise ValueError("planes have the anchors of one level")
        if self.indices is not None and self.activation == "softmax":
            raise ValueError("a softmax is over all classes, of which indices name one")
        return self

    def rows(self, shape: Sequence[int], is_single: bool = False) -> BoxListing | None:
        """Return what an output of ``shape`` lists; None: no boxes. ``is_single``: one number is all."""
        sizes = len(self.anchors[0].anchors) if self.anchors else 1
        match self.layout, list(shape):
            case "columns", [1, numbers, count]:
                return BoxListing(count, numbers)
            case ("planes", [1, planes, *area]) | ("rows", [1, *area, planes]) if (
                len(area) == 2 and planes % sizes == 0
            ):
                return BoxListing(
                    UNKNOWN if min(area) < 0 else math.prod(area) * sizes, planes // sizes
                )
            case "rows", [count] | [1, count] if is_single:
                return BoxListing(count, 1)
            case "rows", [count, numbers] | [1, count, numbers]:
                return BoxListing(count, numbers)
        return None

    def fault(self, forms: Forms) -> str | None:
        """Return which of the outputs, which are there, does not fit, and why; None: all do."""
        is_one = self.boxes == self.scores
        box = max(self._box_end, self._score_end) if is_one else self._box_end
        wanted = {self.boxes: (box, "boxes", is_one)}
        if not is_one:
            wanted[self.scores] = (self._score_end, "scores", True)
        if self.indices is not None:
            wanted[self.indices] = (1, "indices", True)
        counts = {sum(level.count for level in self.anchors)} if self.anchors else set()
        for output, (numbers, what, is_exact) in wanted.items():
            dtype, shape = forms[output]
            rows = self.rows(shape, numbers == 1)
            is_listed = rows is not None and (
                rows.numbers == numbers or (rows.numbers > numbers and not is_exact)
            )
            types = _WHOLE if what == "indices" else ("float32",)
            said = f"output {output!r} is {dtype}{list(shape)}"
            if dtype not in types or rows is None or not is_listed or rows.boxes == 0:
                least = "" if is_exact else " or more"
                return (
                    f"{said}; {what} of {self.classes} classes in {self.layout} need "
                    f"{types[0]}, {numbers}{least} numbers a box"
                )
            counts |= {rows.boxes} - {UNKNOWN}
            if len(counts) > 1:
                of = "anchors make" if self.anchors else "the others have"
                return f"{said}: {rows.boxes} boxes, and {of} {min(counts - {rows.boxes})}"
        return None


class ListedHead(_OneOutput):
    """Boxes that the network has decoded itself: centre x, y, width, height in pixels of its input.

    ``yolov5``: ``output`` is [1, boxes, 5 + classes], objectness before the classes. ``yolov8``, as later
    versions have it: [1, 4 + classes, boxes], no objectness. Both hold probabilities.
    """

    kind: Literal["yolov5", "yolov8"]
    classes: PositiveInt

    @cached_property
    def listing(self) -> BoxesHead:
        """The same in more words."""
        by_row = self.kind == "yolov5"
        return BoxesHead(
            kind="boxes",
            boxes=self.output,
            scores=self.output,
            classes=self.classes,
            layout="rows" if by_row else "columns",
            scores_at=_BOX + by_row,
            objectness=_BOX if by_row else None,
            box="centre",
            unit="pixels",
        )

    @property
    def numbers(self) -> int:
        """How many numbers a box has."""
        return self.listing.scores_at + self.classes

    def fits(self, shape: tuple[int, ...]) -> bool:
        rows = self.listing.rows(shape) if len(shape) == 3 and min(shape) > 0 else None
        return rows is not None and rows.numbers == self.numbers

    def needs(self) -> str:
        axes = f"boxes, {self.numbers}" if self.kind == "yolov5" else f"{self.numbers}, boxes"
        return f"{self.kind} with {self.classes} classes needs float32[1, {axes}]"


AnyHead = Annotated[DetectionHead | ListedHead | BoxesHead, Field(discriminator="kind")]


class Detection(_Record):
    """How the outputs of a detector become boxes; thresholds are defaults of a request.

    ``nms``: which boxes of a class that overlap are one; "none": the network has seen to that.
    """

    heads: Annotated[tuple[AnyHead, ...], Field(min_length=1)]
    labels: tuple[str, ...] = ()
    nms: Literal["greedy", "diou", "none"] = "greedy"
    beta: Positive = 0.6
    score_threshold: Fraction = 0.25
    iou_threshold: Fraction = 0.45

    @property
    def classes(self) -> int:
        return self.heads[0].classes

    @property
    def outputs(self) -> tuple[str, ...]:
        """Names of all outputs that are looked at, by head."""
        return tuple(name for head in self.heads for name in head.outputs)

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        counts = sorted({head.classes for head in self.heads})
        if len(counts) > 1:
            raise ValueError(f"the heads have {' and '.join(map(str, counts))} classes")
        if len(self.labels) not in (0, self.classes):
            raise ValueError(f"{len(self.labels)} labels for {self.classes} classes")
        outputs = self.outputs
        twice = next((name for name in outputs if outputs.count(name) > 1), None)
        if twice is not None:
            raise ValueError(f"two heads are of output {twice!r}")
        return self


def read_detection(path: Path) -> Detection:
    """Read a recipe from a TOML file.

    Raises:
        ModelError: the file is missing, is not TOML, or a field is unknown or out of range.
    """
    return read_recipe(path, Detection)


def head_fault(detection: Detection, outputs: Forms) -> str | None:
    """Return which head is not among ``outputs`` and why; None if all are."""
    for number, head in enumerate(detection.heads):
        where = f"detection.heads.{number}"
        missing = next((name for name in head.outputs if name not in outputs), None)
        if missing is not None:
            there = ", ".join(map(repr, outputs))
            return f"{where}: output {missing!r}: no such output; there are {there}"
        fault = head.fault(outputs)
        if fault is not None:
            return f"{where}: {fault}"
    return None
