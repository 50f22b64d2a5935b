"""What a detector's outputs hold: the recipe that the manifest keeps."""

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, PositiveFloat, PositiveInt


class _Record(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class Head(_Record):
    """One detection layer: ``output`` is [1, anchors * (5 + classes), rows, columns].

    ``anchors`` are (width, height), in cells for a region layer, in pixels of the network's input for a
    yolo layer. ``activated``: the output is what Darknet's layer gives; otherwise what it receives.
    """

    output: str
    kind: Literal["region", "yolo"]
    anchors: Annotated[tuple[tuple[PositiveFloat, PositiveFloat], ...], Field(min_length=1)]
    classes: PositiveInt
    new_coords: bool = False
    scale_x_y: PositiveFloat = 1.0
    softmax: bool = True
    activated: bool = True


class Detection(_Record):
    """How the outputs of a detector become boxes; thresholds are defaults of a request."""

    heads: Annotated[tuple[Head, ...], Field(min_length=1)]
    labels: tuple[str, ...] = ()
    nms: Literal["greedy", "diou"] = "greedy"
    beta: PositiveFloat = 0.6
    score_threshold: Annotated[float, Field(ge=0, le=1)] = 0.25
    iou_threshold: Annotated[float, Field(ge=0, le=1)] = 0.45
