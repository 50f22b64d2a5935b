"""Which head would fit the outputs of a network: by their shapes, for the error of one that does not."""

from collections.abc import Iterator
from itertools import permutations
from typing import Any

from models.detection.heads import AnyHead, Forms
from models.records import read_record

Keys = dict[str, Any]

_BOX, _GRID_RANK = 4, 4
#: What follows box and scores in rows of public networks: of rotated boxes, of poses, of masks.
_FOLLOWING: tuple[Keys, ...] = ({"rotated": True}, {"keypoints": (17, 3)}, {"extra": 32})


def suggested_head(outputs: Forms, classes: int) -> str | None:
    """Return the keys of a head for ``classes`` classes as TOML has them; None: nothing known fits.

    ``classes`` is among the keys where outputs have another count.
    """
    for keys in (*_heads(outputs, classes), *_heads_of_other_counts(outputs)):
        head: AnyHead = read_record(AnyHead, {"classes": classes, **keys})
        if head.fault(outputs) is None:
            return ", ".join(f"{key} = {_toml(value)}" for key, value in keys.items())
    return None


def listed_head(outputs: Forms) -> str | None:
    """Return the keys of a head where ``outputs`` are three lists, as torchvision's detectors write them.

    Boxes [n, 4], and a score and the index of a class [n] of each; None: they are something else. How many
    classes there are they do not say.
    """
    if len(outputs) != 3:
        return None
    for keys in _lists(outputs, 1):
        head: AnyHead = read_record(AnyHead, {"classes": 1, **keys})
        if "background" in keys and "indices" in keys and head.fault(outputs) is None:
            return ", ".join(f"{key} = {_toml(value)}" for key, value in keys.items())
    return None


def _toml(value: object) -> str:
    match value:
        case bool():
            return str(value).lower()
        case tuple():
            return str(list(value))
        case str():
            return f'"{value}"'
        case dict():
            return f"{{{', '.join(f'{key} = {_toml(inner)}' for key, inner in value.items())}}}"
    return str(value)


def _heads(outputs: Forms, classes: int) -> Iterator[Keys]:
    """Yield heads from those that say most to those that fit almost anything."""
    for name in outputs:
        yield {"kind": "yolov8", "output": name}
        yield {"kind": "yolov5", "output": name}
        yield {"kind": "yolov10", "output": name}
        # Of RT-DETR in Ultralytics, and of YOLOv7 with suppression inside.
        rows = {"kind": "boxes", "boxes": name, "scores": name}
        yield rows | {"scores_at": _BOX, "box": "centre"}
        yield rows | {"boxes_at": 1, "index_at": 5, "scores_at": 6, "unit": "pixels"}
        masks = (
            {"masks": {"output": other, "channels": shape[1]}}
            for other, (_, shape) in outputs.items()
            if len(shape) == _GRID_RANK and shape[1] > 0
        )
        for more in (*masks, *_FOLLOWING):
            yield from ({"kind": kind, "output": name, **more} for kind in ("yolov8", "yolov10"))
    yield from _lists(outputs, classes)


def _lists(outputs: Forms, classes: int) -> Iterator[Keys]:
    """Yield heads whose boxes, scores and classes are outputs of their own."""
    integers = [name for name, (dtype, _) in outputs.items() if dtype != "float32"]
    floats = [name for name in outputs if name not in integers]
    for index in integers:
        for boxes in floats:
            rows = {"kind": "boxes", "boxes": boxes, "scores": boxes}
            yield rows | {"scores_at": _BOX, "indices": index, "unit": "pixels"}
        for boxes, scores in permutations(floats, 2):
            lists = {"kind": "boxes", "boxes": boxes, "scores": scores, "indices": index}
            # Of torchvision, which lists without an axis for the picture; its class 0 is none.
            is_plain = len(outputs[boxes][1]) == 2
            yield lists | ({"unit": "pixels", "background": "first"} if is_plain else {})
    for boxes, scores in permutations(floats, 2):
        is_box = outputs[boxes][1][-1:] == (_BOX,)
        if not is_box:
            continue
        lists = {"kind": "boxes", "boxes": boxes, "scores": scores}
        if "logits" in scores:  # of the DETR family
            lists["box"] = "centre"
            yield lists | {"activation": "softmax", "background": "last"}
            yield lists | {"activation": "sigmoid"}
        yield lists | {"background": "first"}
        yield lists


def _heads_of_other_counts(outputs: Forms) -> Iterator[Keys]:
    for name, (_, shape) in outputs.items():
        if len(shape) == 3:
            _, rows, columns = shape
            kind, length = (
                ("yolov8", rows - _BOX) if rows < columns else ("yolov5", columns - _BOX - 1)
            )
            if length > 0:
                yield {"kind": kind, "output": name, "classes": length}
