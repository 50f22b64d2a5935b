"""What one output of a detector holds, or a few that belong together: the heads of a recipe."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Annotated, Literal, NamedTuple

from models.network.fields import UNKNOWN, Count
from models.records import BY_KIND, Bounds, FiniteFloat, PositiveFloat, PositiveInt, Record

#: Element type and shape of outputs by name.
Forms = Mapping[str, tuple[str, tuple[int, ...]]]
#: How many points, and how many numbers each has.
Keypoints = tuple[PositiveInt, Literal[2, 3]]
#: Versions of YOLO by whose layout of rows others are called, too.
ListedKind = Literal["yolov5", "yolov8", "yolov10"]

_WHOLE = ("int32", "int64", "uint8", "float32")
_BOX = 4


@dataclass(frozen=True, kw_only=True)
class _OneOutput(Record):
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


@dataclass(frozen=True, kw_only=True)
class DetectionHead(_OneOutput):
    """One detection layer, decoded by us: ``output`` is [1, anchors * (5 + classes), rows, columns].

    Each anchor has the planes x, y, width, height, objectness and one a class. ``anchors`` are (width,
    height), in cells for a region layer, in pixels of the network's input for a yolo layer.
    ``activated``: the output is what Darknet's layer gives; otherwise what it receives.
    """

    kind: Literal["region", "yolo"]
    anchors: Annotated[tuple[tuple[PositiveFloat, PositiveFloat], ...], Bounds(min_length=1)]
    classes: PositiveInt
    new_coords: bool = False
    scale_x_y: PositiveFloat = 1.0
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


@dataclass(frozen=True, kw_only=True)
class AnchorLevel(Record):
    """Boxes that predictions are relative to: one of each of ``sizes`` in each cell of ``grid``.

    ``grid``: (columns, rows). ``sizes``: (width, height) in pixels of the network's input; none: one of
    ``stride``. Cell i has its centre at (i + ``offset``) x ``stride`` pixels, where there is a stride, and
    else in that part of the input that ``grid`` cuts evenly.
    """

    grid: tuple[PositiveInt, PositiveInt]
    sizes: tuple[tuple[PositiveFloat, PositiveFloat], ...] = ()
    stride: PositiveFloat | None = None
    offset: FiniteFloat = 0.5

    @property
    def anchors(self) -> tuple[tuple[float, float], ...]:
        """Width and height of those in each cell."""
        return self.sizes or ((self.stride or 1.0,) * 2,)

    @property
    def count(self) -> int:
        return math.prod(self.grid) * len(self.anchors)

    def __post_init__(self) -> None:
        if not self.sizes and self.stride is None:
            raise ValueError("neither sizes nor a stride")


@dataclass(frozen=True, kw_only=True)
class Masks(Record):
    """Prototypes of masks, which all boxes share: ``output`` is float32[1, channels, rows, columns]."""

    output: str
    channels: PositiveInt = 32

    def fault(self, forms: Forms) -> str | None:
        """Return why the output, which is there, is none; None: it is one."""
        dtype, shape = forms[self.output]
        is_grid = len(shape) == 4 and shape[:2] == (1, self.channels) and min(shape) > 0
        if dtype == "float32" and is_grid:
            return None
        return (
            f"output {self.output!r} is {dtype}{list(shape)}; masks need "
            f"float32[1, {self.channels}, rows, columns]"
        )


class BoxListing(NamedTuple):
    """How many boxes an output lists, and how many numbers of each."""

    boxes: int
    row_length: int


@dataclass(frozen=True, kw_only=True)
class BoxesHead(Record):
    """Boxes of ``classes`` classes in the output ``boxes``, their scores in ``scores``, which may be one.

    ``layout``: "rows" are [1, n, k], [n, k] or [1, rows, columns, anchors * k], where one number is all
    there is also [1, n] or [n]; "columns" are [1, k, n]; "planes" [1, anchors * k, rows, columns]. Boxes
    begin ``boxes_at`` and scores ``scores_at`` numbers behind the first of a row; ``objectness``: where a
    number stands by which scores are multiplied. ``background``: which class is none. ``indices``: the
    output with the class of each box, of which there is one score then; ``index_at``: where it stands in
    the row of its score.

    Numbers follow those of box and score: two or three of each of ``keypoints`` (x, y in ``unit``, and how
    visible it is), the angle of a box that is ``rotated`` around its centre (radians, clockwise), a factor
    for each channel of ``masks``, and as many as ``extra`` says, which no box needs.

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
    index_at: Count | None = None
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
    variances: tuple[PositiveFloat, PositiveFloat] = (0.1, 0.2)
    linear: bool = False
    bins: PositiveInt = 1
    keypoints: Keypoints | None = None
    rotated: bool = False
    masks: Masks | None = None
    extra: Count = 0

    @property
    def listing(self) -> "BoxesHead":
        return self

    @property
    def outputs(self) -> tuple[str, ...]:
        masks = self.masks.output if self.masks else None
        names = (self.boxes, self.scores, self.indices, masks)
        return tuple(dict.fromkeys(name for name in names if name is not None))

    @property
    def columns(self) -> int:
        """How many scores a box has."""
        return 1 if self.names_classes else self.classes + (self.background is not None)

    @property
    def names_classes(self) -> bool:
        """Whether a box has one score, and the class that it is of."""
        return self.indices is not None or self.index_at is not None

    @property
    def is_single(self) -> bool:
        """Whether the output with scores has nothing else, and one for each box."""
        return self.boxes != self.scores and self._score_end == 1

    @property
    def points(self) -> Keypoints | None:
        """How many points a box has, of how many numbers: key points, or corners of one that is rotated."""
        return (_BOX, 2) if self.rotated else self.keypoints

    @property
    def points_at(self) -> int:
        """Where in the row of a box the numbers of its points begin."""
        return max(self._box_end, self._score_end) if self.boxes == self.scores else self._box_end

    @property
    def _box_end(self) -> int:
        return self.boxes_at + _BOX * self.bins

    @property
    def _score_end(self) -> int:
        return max(self.scores_at + self.columns, 0 if self.index_at is None else self.index_at + 1)

    @property
    def row_length(self) -> int:
        """How many numbers the row of a box has."""
        return self.factors_at + self.channels + self.extra

    @property
    def factors_at(self) -> int:
        """Where in the row of a box the factors of its mask begin."""
        return self.points_at + math.prod(self.keypoints or (0,)) + self.rotated

    @property
    def channels(self) -> int:
        """How many factors the mask of a box has; 0: it has none."""
        return self.masks.channels if self.masks else 0

    def __post_init__(self) -> None:
        if (self.box in ("offsets", "distances")) != bool(self.anchors):
            raise ValueError(
                f"box {self.box!r} goes {'without' if self.anchors else 'with'} anchors"
            )
        if self.bins > 1 and self.box != "distances":
            raise ValueError("bins are of distances")
        if self.layout == "planes" and len(self.anchors) != 1:
            raise ValueError("planes have the anchors of one level")
        if self.names_classes and self.activation == "softmax":
            raise ValueError("a softmax is over all classes, of which indices name one")
        if self.indices is not None and self.index_at is not None:
            raise ValueError("the class of a box is in indices or at index_at, not both")
        if self.anchors and self.points:
            raise ValueError("key points and rotated boxes go without anchors")
        if self.keypoints and self.rotated:
            raise ValueError("a rotated box has no key points")
        if self.rotated and self.box != "centre":
            raise ValueError("a rotated box is given by its centre")

    def rows(self, shape: Sequence[int], is_single: bool = False) -> BoxListing | None:
        """Return what an output of ``shape`` lists; None: no boxes. ``is_single``: one number is all."""
        sizes = len(self.anchors[0].anchors) if self.anchors else 1
        match self.layout, list(shape):
            case "columns", [1, length, count]:
                return BoxListing(count, length)
            case ("planes", [1, planes, *area]) | ("rows", [1, *area, planes]) if (
                len(area) == 2 and planes % sizes == 0
            ):
                return BoxListing(
                    UNKNOWN if min(area) < 0 else math.prod(area) * sizes, planes // sizes
                )
            case "rows", [count] | [1, count] if is_single:
                return BoxListing(count, 1)
            case "rows", [count, length] | [1, count, length]:
                return BoxListing(count, length)
        return None

    def fault(self, forms: Forms) -> str | None:
        """Return which of the outputs, which are there, does not fit, and why; None: all do."""
        is_one = self.boxes == self.scores
        wanted = {self.boxes: (self.row_length, "boxes", is_one)}
        if not is_one:
            wanted[self.scores] = (self._score_end, "scores", True)
        if self.indices is not None:
            wanted[self.indices] = (1, "indices", True)
        counts = {sum(level.count for level in self.anchors)} if self.anchors else set()
        for output, (length, what, is_exact) in wanted.items():
            dtype, shape = forms[output]
            rows = self.rows(shape, length == 1)
            is_listed = rows is not None and (
                rows.row_length == length or (rows.row_length > length and not is_exact)
            )
            types = _WHOLE if what == "indices" else ("float32",)
            said = f"output {output!r} is {dtype}{list(shape)}"
            if dtype not in types or rows is None or not is_listed or rows.boxes == 0:
                least = "" if is_exact else " or more"
                return (
                    f"{said}; {what} of {self.classes} classes in {self.layout} need "
                    f"{types[0]}, {length}{least} numbers a box"
                )
            counts |= {rows.boxes} - {UNKNOWN}
            if len(counts) > 1:
                of = "anchors make" if self.anchors else "the others have"
                return f"{said}: {rows.boxes} boxes, and {of} {min(counts - {rows.boxes})}"
        return self.masks.fault(forms) if self.masks else None


@dataclass(frozen=True, kw_only=True)
class ListedHead(_OneOutput):
    """Boxes that the network has decoded itself, in pixels of its input: what exporters of YOLO write.

    ``yolov5``: ``output`` is [1, boxes, 5 + classes], centre x, y, width, height, objectness, a probability
    a class. ``yolov8``, as later versions have it: [1, 4 + classes, boxes], no objectness. ``yolov10``:
    [1, boxes, 6] or [boxes, 6], left, top, right, bottom, the score and its class, of boxes that need no
    suppression.
    ``keypoints``, ``rotated`` (then yolov10's are by centre, too), ``masks`` and ``extra``: numbers that
    follow, as of a `BoxesHead`.
    """

    kind: ListedKind
    classes: PositiveInt
    keypoints: Keypoints | None = None
    rotated: bool = False
    masks: Masks | None = None
    extra: Count = 0

    @property
    def outputs(self) -> tuple[str, ...]:
        return self.listing.outputs

    def fault(self, forms: Forms) -> str | None:
        """As of any head."""
        return super().fault(forms) or (self.masks.fault(forms) if self.masks else None)

    @cached_property
    def listing(self) -> BoxesHead:
        """The same in more words."""
        is_ranked = self.kind == "yolov10"
        return BoxesHead(
            kind="boxes",
            boxes=self.output,
            scores=self.output,
            classes=self.classes,
            layout="columns" if self.kind == "yolov8" else "rows",
            scores_at=_BOX + (self.kind == "yolov5"),
            index_at=_BOX + 1 if is_ranked else None,
            objectness=_BOX if self.kind == "yolov5" else None,
            box="corners" if is_ranked and not self.rotated else "centre",
            unit="pixels",
            keypoints=self.keypoints,
            rotated=self.rotated,
            masks=self.masks,
            extra=self.extra,
        )

    @property
    def row_length(self) -> int:
        """How many numbers a box has."""
        return self.listing.row_length

    def __post_init__(self) -> None:
        if self.keypoints and self.rotated:
            raise ValueError("a rotated box has no key points")

    def fits(self, shape: tuple[int, ...]) -> bool:
        ranks = (2, 3) if self.kind == "yolov10" else (3,)
        rows = self.listing.rows(shape) if len(shape) in ranks and 0 not in shape else None
        return rows is not None and rows.row_length == self.row_length

    def needs(self) -> str:
        axes = f"{self.row_length}, boxes" if self.kind == "yolov8" else f"boxes, {self.row_length}"
        return f"{self.kind} with {self.classes} classes{self._more()} needs float32[1, {axes}]"

    def _more(self) -> str:
        points = f"{self.keypoints[0]} key points" if self.keypoints else ""
        extra = f"{self.extra} extra numbers" if self.extra else ""
        masks = f"{self.masks.channels} factors of masks" if self.masks else ""
        words = filter(None, (points, "an angle" if self.rotated else "", masks, extra))
        return "".join(f", {word}" for word in words)


AnyHead = Annotated[DetectionHead | ListedHead | BoxesHead, BY_KIND]
