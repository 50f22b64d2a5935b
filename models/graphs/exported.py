"""What exporters of YOLO write into ``metadata_props``: Python literals, in files that anyone may write.

Ultralytics writes ``names`` ({0: 'person', ...}), ``task``, ``imgsz`` ([rows, columns]), ``kpt_shape``,
``channels``, ``args``, and in later versions ``end2end`` and ``head``; YOLOv5 ``names`` and ``stride``
alone. An entry that is not what it should be is left out, with a warning: the network runs without it.
"""

import ast
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from models.detection.heads import Keypoints
from models.images.placement import Size

#: Of an entry: ten thousand names.
_MAX_CHARACTERS = 1 << 18
_MAX_SIDE = 1 << 15
_MAX_KEYPOINTS = 1 << 10
# Decoders of the DETR family, as Ultralytics names their classes.
_DETR = ("DETR", "DEIM", "DFINE")


@dataclass(frozen=True)
class ExporterMetadata:
    """What such a file says; what it does not say is None or empty.

    ``labels``: in the order of the classes. ``size``: (width, height) of the input, which has ``channels``.
    ``keypoints``: how many a box has, and of how many numbers. ``has_head``: the head is named.
    ``is_detr``: it is one of the DETR family; None: nothing says it. ``is_suppressed``: of boxes that
    overlap the network lists one; None: nothing says it.
    """

    labels: tuple[str, ...] = ()
    task: str | None = None
    size: Size | None = None
    channels: int = 3
    keypoints: Keypoints | None = None
    has_head: bool = False
    is_detr: bool | None = None
    is_suppressed: bool | None = None


def read_exported(
    entries: Mapping[str, str], warn: Callable[[str], None]
) -> ExporterMetadata | None:
    """Return what ``entries`` of a file's metadata say; None: no exporter of YOLO wrote them.

    ``warn`` is called with a line for an entry that is not what it should be.
    """
    if "names" not in entries and not {"task", "imgsz"} <= entries.keys():
        return None

    def read(key: str, parse: Callable[[Any], Any], default: Any = None) -> Any:
        if key not in entries:
            return default
        try:
            return parse(_literal(entries[key]))
        except ValueError as exc:
            warn(f"metadata {key}: {exc}; left out")
            return default

    task = entries.get("task")
    if task is not None and not (task.isidentifier() and task.isascii()):
        warn("metadata task: not a word; left out")
        task = None
    return ExporterMetadata(
        labels=read("names", _names, ()),
        task=task,
        size=read("imgsz", _size),
        channels=read("channels", lambda value: _count(value, "channels", _MAX_SIDE), 3),
        keypoints=read("kpt_shape", _keypoints),
        has_head="head" in entries,
        is_detr=_is_detr(entries),
        is_suppressed=_is_suppressed(entries),
    )


def _literal(text: str) -> Any:
    """Return the value that ``text`` is as Python writes it.

    Raises:
        ValueError: it is none, or longer than any should be.
    """
    if len(text) > _MAX_CHARACTERS:
        raise ValueError(f"{len(text)} characters, at most {_MAX_CHARACTERS} are read")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of escapes in strings
            return ast.literal_eval(text)
    except (ValueError, TypeError, SyntaxError, MemoryError, RecursionError) as exc:
        raise ValueError("not a Python literal") from exc


def _names(value: Any) -> tuple[str, ...]:
    """Return labels of a list, or of a dictionary by class."""
    if isinstance(value, dict):
        if set(value) != set(range(len(value))):
            raise ValueError(f"its keys are not the classes 0 to {len(value) - 1}")
        value = [value[index] for index in range(len(value))]
    if not isinstance(value, list | tuple) or not value:
        raise ValueError("neither a list of names nor names by class")
    if not all(isinstance(name, str | int) for name in value):
        raise ValueError("a name is no text")
    names = tuple(map(str, value))
    try:
        "".join(names).encode()
    except UnicodeEncodeError as exc:
        raise ValueError("a name is not UTF-8") from exc
    return names


def _size(value: Any) -> Size:
    """Return (width, height) of rows and columns, or of one number for both."""
    sides = [value, value] if isinstance(value, int) else value
    if not isinstance(sides, list | tuple) or len(sides) != 2:
        raise ValueError("not rows and columns")
    height, width = (_count(side, "pixels", _MAX_SIDE) for side in sides)
    return width, height


def _keypoints(value: Any) -> Keypoints:
    if not isinstance(value, list | tuple) or len(value) != 2 or value[1] not in (2, 3):
        raise ValueError("not a number of key points, and 2 or 3 numbers each")
    return _count(value[0], "key points", _MAX_KEYPOINTS), value[1]


def _count(value: Any, what: str, limit: int) -> int:
    if not isinstance(value, int) or not 0 < value <= limit:
        raise ValueError(f"not 1 to {limit} {what}")
    return value


def _is_detr(entries: Mapping[str, str]) -> bool | None:
    """Return whether the head is one of the DETR family; in versions without its name the model has one."""
    if "head" in entries:
        return any(name in entries["head"].upper() for name in _DETR)
    return True if "rtdetr" in entries.get("description", "").lower() else None


def _is_suppressed(entries: Mapping[str, str]) -> bool | None:
    try:
        end2end, args = (_literal(entries.get(key, "None")) for key in ("end2end", "args"))
    except ValueError:
        return None
    if end2end is True or (isinstance(args, dict) and args.get("nms") is True):
        return True
    return False if end2end is False else None
