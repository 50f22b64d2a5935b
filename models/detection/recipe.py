"""What a detector's outputs hold: the recipe that the manifest keeps."""

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, PositiveInt, model_validator

from models.recipe_files import read_recipe

Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]
Fraction = Annotated[float, Field(ge=0, le=1, allow_inf_nan=False)]


class _Record(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class DetectionHead(_Record):
    """One detection layer, decoded by us: ``output`` is [1, anchors * (5 + classes), rows, columns].

    Each anchor has the planes x, y, width, height, objectness and one a class. ``anchors`` are (width,
    height), in cells for a region layer, in pixels of the network's input for a yolo layer.
    ``activated``: the output is what Darknet's layer gives; otherwise what it receives.
    """

    output: str
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
        """Return what shape of the output would do, and why."""
        return (
            f"{len(self.anchors)} anchors and {self.classes} classes need float32[1, {self.planes}, "
            "rows, columns]"
        )


class ListedHead(_Record):
    """Boxes that the network has decoded itself: centre x, y, width, height in pixels of its input.

    ``yolov5``: ``output`` is [1, boxes, 5 + classes], objectness before the classes. ``yolov8``, as later
    versions have it: [1, 4 + classes, boxes], no objectness. Both hold probabilities.
    """

    output: str
    kind: Literal["yolov5", "yolov8"]
    classes: PositiveInt

    @property
    def by_row(self) -> bool:
        """Whether the numbers of a box lie together."""
        return self.kind == "yolov5"

    @property
    def objectness(self) -> int | None:
        """Which number of a box says that there is something; None: none."""
        return 4 if self.kind == "yolov5" else None

    @property
    def numbers(self) -> int:
        """How many numbers a box has."""
        return 4 + (self.objectness is not None) + self.classes

    def fits(self, shape: tuple[int, ...]) -> bool:
        if len(shape) != 3 or min(shape) < 1:
            return False
        images, rows, columns = shape
        return images == 1 and (columns if self.by_row else rows) == self.numbers

    def needs(self) -> str:
        """Return what shape of the output would do, and why."""
        axes = f"boxes, {self.numbers}" if self.by_row else f"{self.numbers}, boxes"
        return f"{self.kind} with {self.classes} classes needs float32[1, {axes}]"


AnyHead = Annotated[DetectionHead | ListedHead, Field(discriminator="kind")]


class Detection(_Record):
    """How the outputs of a detector become boxes; thresholds are defaults of a request."""

    heads: Annotated[tuple[AnyHead, ...], Field(min_length=1)]
    labels: tuple[str, ...] = ()
    nms: Literal["greedy", "diou"] = "greedy"
    beta: Positive = 0.6
    score_threshold: Fraction = 0.25
    iou_threshold: Fraction = 0.45

    @property
    def classes(self) -> int:
        return self.heads[0].classes

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        counts = sorted({head.classes for head in self.heads})
        if len(counts) > 1:
            raise ValueError(f"the heads have {' and '.join(map(str, counts))} classes")
        if len(self.labels) not in (0, self.classes):
            raise ValueError(f"{len(self.labels)} labels for {self.classes} classes")
        outputs = [head.output for head in self.heads]
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


def head_fault(
    detection: Detection, outputs: Mapping[str, tuple[str, tuple[int, ...]]]
) -> str | None:
    """Return which head is not among ``outputs`` (name: dtype, shape) and why; None if all are."""
    for number, head in enumerate(detection.heads):
        where = f"detection.heads.{number}: output {head.output!r}"
        if head.output not in outputs:
            return f"{where}: no such output; there are {', '.join(map(repr, outputs))}"
        dtype, shape = outputs[head.output]
        if dtype != "float32" or not head.fits(shape):
            return f"{where} is {dtype}{list(shape)}; {head.needs()}"
    return None
