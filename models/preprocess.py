"""From a photograph to the tensor that a network was trained on.

The recipe comes as a TOML file at compile time and is kept in the manifest.
"""

import tomllib
from pathlib import Path
from typing import Annotated, Literal

import numpy as np
from numpy.typing import NDArray
from PIL import Image
from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    FiniteFloat,
    PositiveInt,
    ValidationError,
)

from models.errors import ModelError


def _not_zero(value: float) -> float:
    if value == 0:
        raise ValueError("zero cannot divide")
    return value


Channels = tuple[FiniteFloat, FiniteFloat, FiniteFloat]
Divisor = Annotated[FiniteFloat, AfterValidator(_not_zero)]

_FILTERS = {
    "nearest": Image.Resampling.NEAREST,
    "bilinear": Image.Resampling.BILINEAR,
    "bicubic": Image.Resampling.BICUBIC,
    "lanczos": Image.Resampling.LANCZOS,
}


class Preprocess(BaseModel):
    """How an image becomes a tensor: (pixel - mean) * scale / std, pixels from 0 to 255.

    ``resize`` stretches to ``size`` (width, height), or crops to its aspect ratio first, or pads
    around the image (letterbox) with ``pad_value``.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    size: tuple[PositiveInt, PositiveInt]
    resize: Literal["stretch", "crop", "letterbox"] = "stretch"
    filter: Literal["nearest", "bilinear", "bicubic", "lanczos"] = "bilinear"
    color: Literal["RGB", "BGR"] = "RGB"
    layout: Literal["NCHW", "NHWC"] = "NCHW"
    mean: Channels = (0.0, 0.0, 0.0)
    std: tuple[Divisor, Divisor, Divisor] = (1.0, 1.0, 1.0)
    scale: FiniteFloat = 1.0
    pad_value: float = Field(127.5, ge=0, le=255)

    @property
    def shape(self) -> tuple[int, int, int, int]:
        """Shape of the tensor that ``apply`` returns."""
        width, height = self.size
        return (1, 3, height, width) if self.layout == "NCHW" else (1, height, width, 3)

    def apply(self, image: Image.Image) -> NDArray[np.float32]:
        """Return the tensor for ``image`` (any mode), float32; mean and std follow ``color``."""
        picture = image if image.mode == "RGB" else image.convert("RGB")  # convert always copies
        pixels = np.asarray(self._resized(picture), np.float32)
        if self.color == "BGR":
            pixels = pixels[:, :, ::-1]
        factor = np.float32(self.scale) / np.asarray(self.std, np.float32)
        tensor = (pixels - np.asarray(self.mean, np.float32)) * factor
        if self.layout == "NCHW":
            tensor = tensor.transpose(2, 0, 1)
        return np.ascontiguousarray(tensor[None])

    def _resized(self, image: Image.Image) -> Image.Image:
        width, height = self.size
        resample = _FILTERS[self.filter]
        if self.resize == "stretch":
            return image.resize(self.size, resample)
        if self.resize == "crop":
            # Cropped before it is resized: a thin strip must not grow to the size of a wall.
            ratio = max(width / image.width, height / image.height)
            left = max(image.width - width / ratio, 0) / 2
            top = max(image.height - height / ratio, 0) / 2
            box = (left, top, image.width - left, image.height - top)
            return image.resize(self.size, resample, box)
        ratio = min(width / image.width, height / image.height)
        inner = (max(1, round(image.width * ratio)), max(1, round(image.height * ratio)))
        shade = round(self.pad_value)
        canvas = Image.new("RGB", self.size, (shade, shade, shade))
        corner = ((width - inner[0]) // 2, (height - inner[1]) // 2)
        canvas.paste(image.resize(inner, resample), corner)
        return canvas


def read_preprocess(path: Path) -> Preprocess:
    """Read a recipe from a TOML file.

    Raises:
        ModelError: the file is missing, is not TOML, or a field is unknown or out of range.
    """
    try:
        return Preprocess.model_validate(tomllib.loads(path.read_text("utf-8")))
    except OSError as exc:
        raise ModelError(f"{path}: {exc.strerror or exc}") from exc
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as exc:
        raise ModelError(f"{path}: not TOML: {exc}") from exc
    except ValidationError as exc:
        first = exc.errors()[0]
        field = ".".join(str(part) for part in first["loc"])
        raise ModelError(f"{path}: {field}: {first['msg']}") from exc


def read_labels(path: Path) -> tuple[str, ...]:
    """Read labels from a text file, one a line, in the order of the network's outputs.

    Raises:
        ModelError: the file is missing, is not UTF-8, or has no labels.
    """
    try:
        lines = path.read_text("utf-8").splitlines()
    except OSError as exc:
        raise ModelError(f"{path}: {exc.strerror or exc}") from exc
    except UnicodeDecodeError as exc:
        raise ModelError(f"{path}: labels are not UTF-8") from exc
    labels = tuple(line.strip() for line in lines if line.strip())
    if not labels:
        raise ModelError(f"{path}: no labels in it")
    return labels
