"""Networks that segment: the recipe of their output, and masks over photographs made from it."""

import colorsys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from models.images.placement import ImagePlacement, Size
from models.records import Bounds, FiniteFloat, Record
from models.toml_files import read_recipe

#: In a mask: what is no class, and what of a photograph the network did not see.
NONE = 255
#: What a class is called that is nothing.
BACKGROUND = "background"
_INDICES = ("int64", "int32", "uint8")


class MaskForm(NamedTuple):
    """How large a mask is as the network makes it, and how many classes have scores; 0: it names them."""

    height: int
    width: int
    classes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Segmentation(Record):
    """How ``output`` becomes a mask.

    float32[1, classes, rows, columns] holds scores, of which the best counts; with ``layout`` "NHWC"
    classes come last. Whole numbers [1, rows, columns], or with an axis of one for classes, are classes.
    float32 of that shape is class 1 where it is above ``threshold``, and 0 elsewhere. ``background``: the
    class that is nothing, and not drawn; None: class 0 where it is called so, or there is a threshold.
    """

    output: str
    labels: tuple[str, ...] = ()
    layout: Literal["NCHW", "NHWC"] = "NCHW"
    threshold: FiniteFloat | None = None
    background: Annotated[int, Bounds(ge=0, le=NONE)] | None = None

    def __post_init__(self) -> None:
        if len(self.labels) > NONE:
            raise ValueError(f"{len(self.labels)} labels; a mask has at most {NONE} classes")

    def area(self, dtype: str, shape: Sequence[int]) -> MaskForm | None:
        """Return what an output of this type and shape holds; None: no mask."""
        if min(shape, default=0) < 1 or shape[0] != 1 or len(shape) not in (3, 4):
            return None
        if dtype == "float32" and self.threshold is None:
            if len(shape) != 4:
                return None
            height, width = shape[2:] if self.layout == "NCHW" else shape[1:3]
            classes = shape[1] if self.layout == "NCHW" else shape[3]
            return MaskForm(height, width, classes) if 2 <= classes <= NONE else None
        if dtype not in (("float32",) if self.threshold is not None else _INDICES):
            return None
        sides = list(shape[1:])
        if len(sides) == 3 and sides.pop(0 if self.layout == "NCHW" else 2) != 1:
            return None
        return MaskForm(sides[0], sides[1], 0 if self.threshold is None else 2)

    def is_nothing(self, index: int) -> bool:
        """Return whether class ``index`` is the background, or none."""
        if self.background is not None:
            return index in (self.background, NONE)
        called = self.labels[0].strip("_ ").lower() if self.labels else ""
        return index == NONE or (
            index == 0 and (self.threshold is not None or called == BACKGROUND)
        )

    def label(self, index: int) -> str:
        """Return what class ``index`` is called; "class 12" where it has no name."""
        return self.labels[index] if index < len(self.labels) else f"class {index}"


def segmentation_fault(
    segmentation: Segmentation, outputs: Mapping[str, tuple[str, tuple[int, ...]]]
) -> str | None:
    """Return why none of ``outputs`` (name: dtype, shape) is what the recipe says; None: one is."""
    where = f"segmentation: output {segmentation.output!r}"
    if segmentation.output not in outputs:
        return f"{where}: no such output; there are {', '.join(map(repr, outputs))}"
    dtype, shape = outputs[segmentation.output]
    area = segmentation.area(dtype, shape)
    if area is None:
        if segmentation.threshold is not None:
            wanted = "with a threshold it is float32[1, rows, columns]"
        else:
            wanted = (
                "it is float32[1, classes, rows, columns] of 2 to 255 classes or int64[1, rows, columns], "
                "or has a threshold"
            )
        return f"{where} is {dtype}{list(shape)}; {wanted}"
    if area.classes and len(segmentation.labels) not in (0, area.classes):
        return f"{where}: {len(segmentation.labels)} labels for {area.classes} classes"
    return None


def read_segmentation(path: Path) -> Segmentation:
    """Read a recipe from a TOML file.

    Raises:
        ModelError: the file is missing, is not TOML, or a field is unknown or out of range.
    """
    return read_recipe(path, Segmentation)


Color = tuple[int, int, int]

# Multiples of the golden ratio lie far apart on the circle of hues, however many there are.
_GOLDEN = 0.618033988749895


def color_of(index: int) -> Color:
    """Return the colour of class ``index``: neighbours differ clearly."""
    red, green, blue = colorsys.hsv_to_rgb(index * _GOLDEN % 1, 0.85, 0.95)
    return round(red * 255), round(green * 255), round(blue * 255)


# Masks: which class each pixel of a photograph is, a byte each, in rows that are made as they are read.
#
# What the network gives is kept at its own size. A photograph may have a thousand times as many pixels,
# and none of them is held.

# Pixels whose scores are compared at a time, and of which rows are made.
_BLOCK_PIXELS = 1 << 14
#: What comparing them takes beside the mask: the best score so far, which are better, and copies of them.
WORK_BYTES = 16 * _BLOCK_PIXELS

Bytes = NDArray[np.uint8]


def classes_of(segmentation: Segmentation, output: NDArray[Any]) -> Bytes | None:
    """Return the class of each pixel [rows, columns] as the network sees it; None: a score is NaN.

    What names no class from 0 to 254 is ``NONE``.
    """
    area = segmentation.area(output.dtype.name, output.shape)
    assert area is not None
    height, width, _ = area
    classes = np.empty((height, width), np.uint8)
    step = max(1, _BLOCK_PIXELS // width)
    is_scores = output.dtype == np.float32 and segmentation.threshold is None
    planes = output[0] if is_scores else output.reshape(1, height, width)
    if is_scores and segmentation.layout == "NHWC":
        planes = planes.transpose(2, 0, 1)
    for start in range(0, height, step):
        block = planes[:, start : start + step]
        target = classes[start : start + step]
        if is_scores:
            best = _put_best(block, target)
        elif segmentation.threshold is not None:
            best = block[0]
            np.greater(best, np.float32(segmentation.threshold), out=target, casting="unsafe")
        else:
            inside = (block[0] >= 0) & (block[0] < NONE)
            target[...] = np.where(inside, block[0], NONE)
            continue
        if np.isnan(best).any():
            return None
    return classes


def _put_best(scores: NDArray[np.float32], target: Bytes) -> NDArray[np.float32]:
    """Write the best class of ``scores`` [classes, rows, columns] to ``target``; return its score."""
    best: NDArray[np.float32] = scores[0].copy()
    target[...] = 0
    for number in range(1, len(scores)):
        better = scores[number] > best
        target[better] = number
        np.maximum(best, scores[number], out=best)  # which keeps what is NaN
    return best


@dataclass(frozen=True)
class Mask:
    """``classes`` [rows, columns] as the network sees them, and which of them each pixel of ``size`` is.

    ``columns``, ``rows``: of each column and row of ``size`` (width, height) that of ``classes``; -1: none,
    since the network did not see it.
    """

    segmentation: Segmentation
    classes: Bytes
    size: Size
    columns: NDArray[np.int32]
    rows: NDArray[np.int32]

    @classmethod
    def of_photograph(
        cls, segmentation: Segmentation, classes: Bytes, placement: ImagePlacement, size: Size
    ) -> "Mask":
        """Return the mask over a photograph of ``size`` that lies in the input at ``placement``."""
        across, down = (
            _nearest(length, corner, extent, there)
            for length, corner, extent, there in zip(
                size, placement.corner, placement.extent, classes.shape[::-1], strict=True
            )
        )
        return cls(segmentation, classes, size, across, down)

    @classmethod
    def of_network(cls, segmentation: Segmentation, classes: Bytes) -> "Mask":
        """Return the mask as the network sees it, with what is around the photograph."""
        height, width = classes.shape
        across, down = (np.arange(length, dtype=np.int32) for length in (width, height))
        return cls(segmentation, classes, (width, height), across, down)

    def bands(self) -> Iterator[Bytes]:
        """Yield all of its rows, some at a time: [rows, width], a few thousand pixels or one row."""
        width, height = self.size
        step = max(1, _BLOCK_PIXELS // width)
        unseen = self.columns < 0
        for start in range(0, height, step):
            rows = self.rows[start : start + step]
            band = self.classes[rows[:, None], self.columns]
            band[:, unseen] = NONE
            band[rows < 0] = NONE
            yield band

    def color(self, index: int) -> Color:
        """Return the colour in which class ``index`` is drawn; what is nothing is black."""
        return (0, 0, 0) if self.segmentation.is_nothing(index) else color_of(index)


def _nearest(length: int, corner: float, extent: float, there: int) -> NDArray[np.int32]:
    """Return for each of ``length`` pixels in which of ``there`` its centre lies; -1: in none."""
    places = ((np.arange(length) + 0.5) / length * extent + corner) * there
    inside = (places >= 0) & (places < there)
    return np.where(inside, np.floor(places), -1).astype(np.int32)


@dataclass(frozen=True)
class NamedArea:
    """Of how many pixels class ``index`` is."""

    index: int
    label: str
    color: Color
    pixels: int

    def as_dict(self) -> dict[str, Any]:
        """Return the fields as responses show them."""
        return {
            "label": self.label,
            "index": self.index,
            "color": "#{:02x}{:02x}{:02x}".format(*self.color),
            "pixels": self.pixels,
        }


class Counted:
    """Counts the pixels of each class in bands that it is shown."""

    def __init__(self, mask: Mask) -> None:
        self._mask = mask
        self._pixels = np.zeros(NONE + 1, np.int64)

    def add(self, band: Bytes) -> None:
        """Count the pixels of ``band``."""
        self._pixels += np.bincount(band.ravel(), minlength=NONE + 1)

    def areas(self) -> list[NamedArea]:
        """Return the classes that are there, largest first; ties by index."""
        order = np.argsort(-self._pixels[:NONE], kind="stable")
        label, color = self._mask.segmentation.label, self._mask.color
        return [
            NamedArea(index, label(index), color(index), pixels)
            for index in order.tolist()
            if (pixels := int(self._pixels[index]))
        ]
