"""What the output of a network that segments holds: the recipe that the manifest keeps."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Literal, NamedTuple, Self

from pydantic import BaseModel, ConfigDict, Field, FiniteFloat, model_validator

from models.recipe_files import read_recipe

#: In a mask: what is no class, and what of a photograph the network did not see.
NONE = 255
_NOTHING = "background"
_INDICES = ("int64", "int32", "uint8")


class MaskForm(NamedTuple):
    """How large a mask is as the network makes it, and how many classes have scores; 0: it names them."""

    height: int
    width: int
    classes: int


class Segmentation(BaseModel):
    """How ``output`` becomes a mask.

    float32[1, classes, rows, columns] holds scores, of which the best counts; with ``layout`` "NHWC"
    classes come last. Whole numbers [1, rows, columns], or with an axis of one for classes, are classes.
    float32 of that shape is class 1 where it is above ``threshold``, and 0 elsewhere. ``background``: the
    class that is nothing, and not drawn; None: class 0 where it is called so, or there is a threshold.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    output: str
    labels: tuple[str, ...] = ()
    layout: Literal["NCHW", "NHWC"] = "NCHW"
    threshold: FiniteFloat | None = None
    background: Annotated[int, Field(ge=0, le=NONE)] | None = None

    @model_validator(mode="after")
    def _countable(self) -> Self:
        if len(self.labels) > NONE:
            raise ValueError(f"{len(self.labels)} labels; a mask has at most {NONE} classes")
        return self

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
        return index == NONE or (index == 0 and (self.threshold is not None or called == _NOTHING))

    def label(self, index: int) -> str:
        """Return what class ``index`` is called; a number where it has no name."""
        return self.labels[index] if index < len(self.labels) else str(index)


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
