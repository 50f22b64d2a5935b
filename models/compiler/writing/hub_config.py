"""What Hugging Face, timm and OpenCLIP write of a model: labels, task, how its input is made.

``config.json`` of transformers (``id2label``, ``architectures``) and of timm (``pretrained_cfg``,
``label_names``), ``preprocessor_config.json`` and ``processor_config.json`` of transformers' image
processors and of its WhisperFeatureExtractor, ``open_clip_config.json``, and ``preprocess_cfg.json`` of
what exports OpenCLIP's. Which one a file is follows from its keys. Of an image processor every setting that
changes a picture has a meaning here, or a reason why it has no recipe: an approximate picture would give
approximate answers.
"""

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from models.compiler.writing.sound_config import read_sound
from models.errors import first_fault
from models.images.preprocess import Preprocess
from models.records import FieldError, read_record
from models.sound.recipe import Sound

#: Of labels: of 22,000 classes with long names it is 2 MB.
_MAX_BYTES = 8 << 20
Task = Literal["classify", "detect", "segment", "depth"]
_TASKS: Mapping[str, Task] = {
    "ForImageClassification": "classify",
    "ForImageClassificationWithTeacher": "classify",
    "ForObjectDetection": "detect",
    "ForSemanticSegmentation": "segment",
    "ForDepthEstimation": "depth",
}
# Pillow's numbers of filters that a recipe has.
_FILTERS = {0: "nearest", 1: "lanczos", 2: "bilinear", 3: "bicubic"}
_FILTER_NAMES = frozenset(_FILTERS.values())


class _Defaults(NamedTuple):
    """What an image processor does where a file does not say it.

    ``sides``: 1: a size that is one number is that of the shorter side, where pictures are cropped.
    """

    filter: str = "bicubic"
    sides: Literal[1, 2] = 2


# transformers' image processors whose pictures a recipe makes, step by step as they do; by their names
# without their ends. Others resize in ways of their own, which their files do not say.
_PROCESSORS: Mapping[str, _Defaults] = {
    "Beit": _Defaults(),
    "Bit": _Defaults(sides=1),
    "Blip": _Defaults(),
    "CLIP": _Defaults(sides=1),
    "ChineseCLIP": _Defaults(sides=1),
    "ConvNext": _Defaults(sides=1),
    "DINOv3ViT": _Defaults("bilinear"),
    "DPT": _Defaults(),
    "DeiT": _Defaults(),
    "EfficientNet": _Defaults("nearest"),
    "Flava": _Defaults(),
    "Levit": _Defaults(sides=1),
    "MobileNetV1": _Defaults("bilinear", sides=1),
    "MobileNetV2": _Defaults("bilinear", sides=1),
    "MobileViT": _Defaults("bilinear", sides=1),
    "OwlViT": _Defaults(),
    "Pvt": _Defaults("bilinear"),
    "RTDetr": _Defaults("bilinear"),
    "Segformer": _Defaults("bilinear"),
    "Siglip": _Defaults(),
    "ViT": _Defaults("bilinear"),
}
_ENDS = ("Pil", "Fast", "ImageProcessor", "FeatureExtractor")
# Of depth: sides are multiples of a number, and may have the picture's proportions.
_ASPECT = "DPT"
# Of files older than their processors' names.
_UNNAMED = "ViT"
# From which side on ConvNext's pictures are stretched.
_STRETCHED = 384
# Settings that change a picture in a way for which there is no recipe, unless they are off.
_UNKNOWN = (
    "do_image_splitting",
    "do_pad",
    "do_thumbnail",
    "rescale_offset",
    "size_divisor",
)
_SIDE = Annotated[int, Field(gt=0, le=1 << 15)]
_Floats = Annotated[list[float], Field(min_length=1, max_length=4)]


class _Read(BaseModel):
    model_config = ConfigDict(extra="ignore", allow_inf_nan=False, protected_namespaces=())


class _Size(_Read):
    height: _SIDE | None = None
    width: _SIDE | None = None
    shortest_edge: _SIDE | None = None
    longest_edge: _SIDE | None = None


class _Processor(_Read):
    """transformers' ``preprocessor_config.json``."""

    image_processor_type: str = ""
    feature_extractor_type: str = ""
    do_resize: bool | None = None
    size: _SIDE | _Size | None = None
    resample: int | None = None
    do_center_crop: bool | None = None
    crop_size: _SIDE | _Size | None = None
    crop_pct: Annotated[float, Field(gt=0, le=1)] = 224 / 256
    do_rescale: bool | None = None
    rescale_factor: Annotated[float, Field(gt=0)] = 1 / 255
    do_normalize: bool | None = None
    image_mean: _Floats | None = None
    image_std: _Floats | None = None
    do_flip_channel_order: bool | None = None
    include_top: bool | None = None
    ensure_multiple_of: _SIDE = 1
    keep_aspect_ratio: bool | None = None


class _Timm(_Read):
    """``pretrained_cfg`` of timm's ``config.json``."""

    input_size: Annotated[list[_SIDE], Field(min_length=3, max_length=3)]
    interpolation: str = "bilinear"
    crop_pct: Annotated[float, Field(gt=0, le=1)] = 0.875
    crop_mode: str = "center"
    mean: _Floats
    std: _Floats


class _OpenClip(_Read):
    """``preprocess_cfg`` of OpenCLIP."""

    size: _SIDE | Annotated[list[_SIDE], Field(min_length=2, max_length=2)]
    mean: _Floats
    std: _Floats
    interpolation: str = "bicubic"
    resize_mode: str = "shortest"


_Record = TypeVar("_Record", bound=BaseModel)


@dataclass(frozen=True)
class HubConfig:
    """What the file called ``name`` says; what it does not say is None or empty.

    ``keeps_aspect``: the size of ``preprocess`` is of square pictures; others have one of their own shape.
    ``reasons``: why there is no ``preprocess`` or ``sound``, or are no ``labels``, though it says something
    of them.
    """

    name: str
    labels: tuple[str, ...] = ()
    task: Task | None = None
    preprocess: Preprocess | None = None
    sound: Sound | None = None
    keeps_aspect: bool = False
    reasons: tuple[str, ...] = ()


def read_config(path: Path) -> HubConfig:
    """Return what ``path`` says. A file that is no such JSON says nothing, and the reason."""
    try:
        with path.open("rb") as file:
            data = file.read(_MAX_BYTES + 1)
        if len(data) > _MAX_BYTES:
            raise ValueError(f"larger than {_MAX_BYTES} bytes")
        document = json.loads(data)
    except (OSError, ValueError, RecursionError) as exc:
        return HubConfig(path.name, reasons=(f"{path}: {exc}",))
    if not isinstance(document, dict):
        return HubConfig(path.name)
    reasons = []
    labels: tuple[str, ...] = ()
    preprocess = sound = None
    try:
        labels = _labels(document)
    except ValueError as exc:
        reasons.append(f"{path}: labels: {exc}")
    try:
        preprocess = _preprocess(document)
    except FieldError as exc:
        reasons.append(f"{path}: {exc.reason}")
    except ValueError as exc:
        reasons.append(f"{path}: {exc}")
    try:
        sound = read_sound(document)
    except ValueError as exc:
        reasons.append(f"{path}: {exc}")
    keeps_aspect = bool(_image_processor(document).get("keep_aspect_ratio"))
    return HubConfig(
        path.name, labels, _task(document), preprocess, sound, keeps_aspect, tuple(reasons)
    )


def _task(document: Mapping[str, Any]) -> Task | None:
    names = document.get("architectures")
    if not isinstance(names, list) or not names or not isinstance(names[0], str):
        return None
    return next((task for end, task in _TASKS.items() if names[0].endswith(end)), None)


def _labels(document: Mapping[str, Any]) -> tuple[str, ...]:
    """Return classes by their index; empty: none are named.

    Raises:
        ValueError: they are no names, or not of the classes from 0 on.
    """
    named = document.get("id2label")
    if isinstance(named, dict):
        if set(named) != {str(index) for index in range(len(named))}:
            raise ValueError(f"id2label does not name the classes 0 to {len(named) - 1}")
        named = [named[str(index)] for index in range(len(named))]
    elif named is None:
        named = document.get("label_names", [])
        described = document.get("label_descriptions")
        if isinstance(named, list) and isinstance(described, dict):  # WordNet's numbers, in words
            named = [described.get(name, name) if isinstance(name, str) else name for name in named]
    if not isinstance(named, list) or not all(isinstance(name, str) for name in named):
        raise ValueError("a name is no text")
    try:
        "".join(named).encode()
    except UnicodeEncodeError as exc:
        raise ValueError("a name is not UTF-8") from exc
    return tuple(named)


def _image_processor(document: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the settings of the image processor in ``document``, which may have those of others."""
    nested = document.get("image_processor")
    return nested if isinstance(nested, dict) else document


def _preprocess(document: Mapping[str, Any]) -> Preprocess | None:
    """Return the recipe that ``document`` describes; None: it describes none.

    Raises:
        ValueError: there is none that does the same.
    """
    document = _image_processor(document)
    timm, open_clip = document.get("pretrained_cfg"), document.get("preprocess_cfg")
    if timm is not None:
        return _timm(_validated(_Timm, timm))
    if open_clip is not None:
        size = _vision_size(document)
        if isinstance(open_clip, dict) and size is not None:
            open_clip = {"size": size, **open_clip}
        return _open_clip(_validated(_OpenClip, open_clip))
    if {"mean", "std", "size"} <= document.keys():
        return _open_clip(_validated(_OpenClip, document))
    if not {"image_mean", "do_rescale", "do_resize", "do_normalize"} & document.keys():
        return None
    unknown = next((key for key in _UNKNOWN if document.get(key)), None)
    if unknown is not None:
        raise ValueError(f"{unknown}: pictures are changed in a way that has no recipe")
    return _transformers(_validated(_Processor, document))


def _validated(kind: type[_Record], value: object) -> _Record:
    try:
        return kind.model_validate(value, strict=True)
    except ValidationError as exc:
        raise ValueError(first_fault(exc)) from exc


def _vision_size(document: Mapping[str, Any]) -> object:
    """Return the size of OpenCLIP's pictures in its model's settings; None: they have none."""
    value: Any = document
    for key in ("model_cfg", "vision_cfg", "image_size"):
        value = value.get(key) if isinstance(value, dict) else None
    return value


def _transformers(read: _Processor) -> Preprocess:
    name = read.image_processor_type or read.feature_extractor_type or _UNNAMED
    for end in _ENDS:
        name = name.removesuffix(end)
    if name not in _PROCESSORS:
        raise ValueError(f"image_processor_type {name!r}: no recipe does what it does")
    if read.do_resize is False:
        raise ValueError("do_resize is off: pictures are of any size")
    fields: dict[str, Any] = {"filter": _filter(read, _PROCESSORS[name]), **_scaling(read)}
    if read.do_flip_channel_order:
        fields["color"] = "BGR"
    if read.keep_aspect_ratio and name != _ASPECT:
        raise ValueError("keep_aspect_ratio: pictures are changed in a way that has no recipe")
    outer = _outer(read, name)
    is_cropped = read.crop_size is not None if read.do_center_crop is None else read.do_center_crop
    if name == "ConvNext":
        return _convnext(outer[0], read.crop_pct, fields)
    if is_cropped:
        inner = _sides(read.crop_size) or outer
        return _recipe(size=inner, resize="crop", resize_size=outer, **fields)
    if len(outer) == 1:
        raise ValueError("size: the longer side depends on the picture")
    return _recipe(size=outer, **fields)


def _convnext(side: int, crop_pct: float, fields: Mapping[str, Any]) -> Preprocess:
    """Return the recipe of ConvNext's processor: large pictures are stretched, small ones cut."""
    if side >= _STRETCHED:
        return _recipe(size=(side, side), **fields)
    resize_size = (int(side / crop_pct),)
    return _recipe(size=(side, side), resize="crop", resize_size=resize_size, **fields)


def _outer(read: _Processor, name: str) -> tuple[int, ...]:
    """Return to which [shorter side] or [width, height] a picture is resized."""
    if isinstance(read.size, int):
        outer: tuple[int, ...] = (read.size,) * _PROCESSORS[name].sides
    elif read.size is None:
        raise ValueError("size: not there")
    elif read.size.shortest_edge is not None and read.size.longest_edge is None:
        outer = (read.size.shortest_edge,)
    else:
        outer = _sides(read.size)
        if not outer:
            raise ValueError("size: depends on the picture")
    if name == "ConvNext" and len(outer) != 1:
        raise ValueError("size: no shortest_edge")
    if name == _ASPECT:
        step = read.ensure_multiple_of
        return tuple(round(side / step) * step for side in outer)
    return (int(256 / 224 * outer[0]),) if name == "Levit" and len(outer) == 1 else outer


def _sides(size: int | _Size | None) -> tuple[int, ...]:
    """Return (width, height); empty: they are not both given."""
    if isinstance(size, int):
        return size, size
    if size is None or size.height is None or size.width is None:
        return ()
    return size.width, size.height


def _filter(read: _Processor, defaults: _Defaults) -> str:
    if read.resample is None:
        return defaults.filter
    return _named_filter(_FILTERS.get(read.resample, str(read.resample)))


def _named_filter(name: str) -> str:
    if name not in _FILTER_NAMES:
        raise ValueError(f"filter {name!r}: no recipe has it")
    return name


def _scaling(read: _Processor) -> dict[str, Any]:
    """Return how pixels become numbers: (pixel * factor - mean) / std of the file."""
    factor = 1.0 if read.do_rescale is False else read.rescale_factor
    if read.do_normalize is False or (read.do_normalize is None and read.image_mean is None):
        return {"scale": factor}
    if read.image_mean is None or read.image_std is None:
        raise ValueError("do_normalize: no image_mean and image_std")
    mean = tuple(channel / factor for channel in read.image_mean)
    # EfficientNet with its classifier divides twice.
    std = tuple(channel ** (2 if read.include_top else 1) for channel in read.image_std)
    return {"scale": factor, "mean": mean, "std": std}


def _timm(read: _Timm) -> Preprocess:
    channels, height, width = read.input_size
    if channels != len(_COLORS):
        raise ValueError(f"input_size: {channels} channels")
    sides = tuple(math.floor(side / read.crop_pct) for side in (width, height))
    if read.crop_mode not in ("center", "squash"):
        raise ValueError(f"crop_mode {read.crop_mode!r}: no recipe has it")
    if read.crop_mode == "center" and width != height:
        raise ValueError("input_size: of pictures that are not square there is no recipe")
    return _cropped((width, height), sides[:1] if read.crop_mode == "center" else sides, read)


def _open_clip(read: _OpenClip) -> Preprocess:
    height, width = [read.size] * 2 if isinstance(read.size, int) else read.size
    if read.resize_mode == "squash":
        return _torchvision(read, size=(width, height))
    if read.resize_mode != "shortest" or width != height:
        raise ValueError(
            f"resize_mode {read.resize_mode!r} of {width} x {height}: no recipe has it"
        )
    return _cropped((width, height), (width,), read)


# Channels of a picture.
_COLORS = "RGB"


def _cropped(
    size: tuple[int, int], resize_size: tuple[int, ...], read: _Timm | _OpenClip
) -> Preprocess:
    return _torchvision(
        read, size=size, resize="crop", resize_size=resize_size, crop_rounding="even"
    )


def _torchvision(read: _Timm | _OpenClip, **fields: Any) -> Preprocess:
    """Return the recipe of torchvision's transforms with these ``fields``: pixels from 0 to 1."""
    filter_name = _named_filter(read.interpolation)
    mean = tuple(255 * channel for channel in read.mean)
    return _recipe(filter=filter_name, scale=1 / 255, mean=mean, std=tuple(read.std), **fields)


def _recipe(**fields: Any) -> Preprocess:
    return read_record(Preprocess, fields)
