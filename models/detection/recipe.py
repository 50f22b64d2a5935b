"""What a detector's outputs hold: the recipe that the manifest keeps."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

from models.detection.heads import (
    AnyHead,
    DetectionHead,
    Forms,
    Keypoints,
    Masks,
)
from models.detection.suggestion import suggested_head
from models.records import Bounds, PositiveFloat, Record
from models.toml_files import read_recipe

Fraction = Annotated[float, Bounds(ge=0, le=1)]


@dataclass(frozen=True, kw_only=True)
class Detection(Record):
    """How the outputs of a detector become boxes; thresholds are defaults of a request.

    ``nms``: which boxes of a class that overlap are one; "none": the network has seen to that. "diou" is
    of upright boxes.
    ``multi_label``: a box is listed for each class whose score is high enough, else for the best alone.
    """

    heads: Annotated[tuple[AnyHead, ...], Bounds(min_length=1)]
    labels: tuple[str, ...] = ()
    nms: Literal["greedy", "diou", "none"] = "greedy"
    beta: PositiveFloat = 0.6
    multi_label: bool = True
    score_threshold: Fraction = 0.25
    iou_threshold: Fraction = 0.45

    @property
    def classes(self) -> int:
        return self.heads[0].classes

    @property
    def points(self) -> Keypoints | None:
        """How many points a box has, of how many numbers; None: none."""
        return self._points_of(self.heads[0])

    @property
    def is_rotated(self) -> bool:
        """Whether points are corners of boxes, and not key points."""
        head = self.heads[0]
        return not isinstance(head, DetectionHead) and head.rotated

    @property
    def masks(self) -> Masks | None:
        """The prototypes of masks of boxes; None: there are none."""
        head = self.heads[0]
        return None if isinstance(head, DetectionHead) else head.masks

    @staticmethod
    def _points_of(head: AnyHead) -> Keypoints | None:
        return None if isinstance(head, DetectionHead) else head.listing.points

    @classmethod
    def _is_rich(cls, head: AnyHead) -> bool:
        has_masks = not isinstance(head, DetectionHead) and head.masks is not None
        return has_masks or cls._points_of(head) is not None

    @property
    def outputs(self) -> tuple[str, ...]:
        """Names of all outputs that are looked at, by head."""
        return tuple(name for head in self.heads for name in head.outputs)

    def __post_init__(self) -> None:
        counts = sorted({head.classes for head in self.heads})
        if len(counts) > 1:
            raise ValueError(f"the heads have {' and '.join(map(str, counts))} classes")
        if len(self.labels) not in (0, self.classes):
            raise ValueError(f"{len(self.labels)} labels for {self.classes} classes")
        if len(self.heads) > 1 and any(self._is_rich(head) for head in self.heads):
            raise ValueError("key points, rotated boxes and masks are of one head alone")
        if self.is_rotated and self.nms == "diou":
            raise ValueError(
                'nms "diou" compares upright boxes; of rotated ones it is "greedy" or "none"'
            )
        outputs = self.outputs
        twice = next((name for name in outputs if outputs.count(name) > 1), None)
        if twice is not None:
            raise ValueError(f"two heads are of output {twice!r}")


def read_detection(path: Path) -> Detection:
    """Read a recipe from a TOML file.

    Raises:
        ModelError: the file is missing, is not TOML, or a field is unknown or out of range.
    """
    return read_recipe(path, Detection)


def head_fault(detection: Detection, outputs: Forms) -> str | None:
    """Return which head is not among ``outputs``, why, and what may be; None if all are."""
    for number, head in enumerate(detection.heads):
        missing = next((name for name in head.outputs if name not in outputs), None)
        fault = head.fault(outputs) if missing is None else f"output {missing!r}: no such output"
        if fault is None:
            continue
        looked_at = () if missing else head.outputs
        others = [name for name in outputs if name not in looked_at]
        rest = ", ".join(f"{name!r} {outputs[name][0]}{list(outputs[name][1])}" for name in others)
        more = f"; {'other outputs' if looked_at else 'there are'}: {rest}" if rest else ""
        keys = suggested_head(outputs, detection.classes)
        hint = f"; what fits: {keys}" if keys else ""
        return f"detection.heads.{number}: {fault}{more}{hint}"
    return None
