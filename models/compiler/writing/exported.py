"""What the metadata of an exporter of YOLO mean for a graph: labels, heads, its input from a picture."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from models.detection.heads import BoxesHead, Forms, ListedHead, ListedKind, Masks
from models.detection.recipe import Detection
from models.graphs.exported import ExporterMetadata
from models.graphs.inputs import Warn
from models.images.preprocess import PICTURE_RANK, Preprocess
from models.network.fields import Array
from models.records import read_record
from models.segmentation import BACKGROUND, NONE, Segmentation

_BOX, _RANKED = 4, 6
_COLORS = {1: "GRAY", 3: "RGB"}
# Grey around a picture, which OpenCV resizes, and pixels from 0 to 1, of all networks of these exporters.
_PAD, _SCALE = 114, 1 / 255
# As Ultralytics and YOLOv5 have them where nobody says otherwise.
_IOU, _IOU_YOLOV5 = 0.7, 0.45


@dataclass(frozen=True)
class ExportedRecipes:
    """What follows from the metadata; what does not is None or empty."""

    preprocess: Preprocess | None = None
    detection: Detection | None = None
    labels: tuple[str, ...] = ()
    segmentation: Segmentation | None = None


def exported_recipes(
    exported: ExporterMetadata,
    inputs: Mapping[str, Array],
    outputs: Forms,
    recipe: Detection | None,
    warn: Warn,
) -> ExportedRecipes:
    """Return what ``exported`` means for a graph of such inputs and outputs.

    ``recipe``: a detector's, of the user: heads are not looked for. ``warn`` is called with a line where
    the metadata say what the graph is not.
    """
    if recipe is not None:
        labels = exported.labels if len(exported.labels) == recipe.classes else ()
        return ExportedRecipes(exported_preprocess(exported, inputs), None, labels)
    scores = length_of_scores(outputs)
    if scores and exported.task in (None, "classify"):
        labels = exported.labels if len(exported.labels) == scores else ()
        if exported.labels and not labels:
            warn(f"metadata names: {len(exported.labels)} of {scores} scores; left out")
        # YOLOv5 says no task; its classifiers take pictures otherwise.
        cropped = exported_preprocess(exported, inputs) if exported.task else None
        return ExportedRecipes(cropped, None, labels)
    if exported.task == "semantic" and (recipes := _of_pixels(exported, inputs, outputs)):
        return recipes
    detection = _detection(exported, outputs)
    if detection is None:
        if exported.task is not None or exported.labels:
            warn(
                f"{_described(exported)}: no recipe for outputs {_listed(outputs)}; it answers tensors"
            )
        return ExportedRecipes()
    if isinstance(detection.heads[0], BoxesHead):
        exported = replace(exported, is_detr=True)
    preprocess = exported_preprocess(exported, inputs)
    if preprocess is None:
        listed = _listed({name: (array.dtype, array.shape) for name, array in inputs.items()})
        warn(
            f"{_described(exported)}: inputs are {listed}, photographs are for one float32[1, 3, rows, "
            "columns]; it answers tensors"
        )
        return ExportedRecipes()
    return ExportedRecipes(preprocess, detection, detection.labels)


def _of_pixels(
    exported: ExporterMetadata, inputs: Mapping[str, Array], outputs: Forms
) -> ExportedRecipes | None:
    """Return the recipes of a network that says of what class each pixel is; None: it does not."""
    preprocess = exported_preprocess(exported, inputs)
    ((name, (dtype, shape)), *_) = outputs.items()
    segmentation = Segmentation(output=name)
    if preprocess is None or segmentation.area(dtype, shape) is None:
        return None
    # Of one class pixels are 0 or 1.
    labels = (BACKGROUND, *exported.labels) if len(exported.labels) == 1 else exported.labels
    return ExportedRecipes(preprocess, None, labels if len(labels) <= NONE else (), segmentation)


def _described(exported: ExporterMetadata) -> str:
    task = f"task {exported.task!r}, " if exported.task else ""
    return f"metadata {task}{len(exported.labels)} names"


def _listed(forms: Forms) -> str:
    return ", ".join(f"{name!r} {dtype}{list(shape)}" for name, (dtype, shape) in forms.items())


def length_of_scores(outputs: Forms) -> int:
    """Return the length of the one output if that is a vector of scores, else 0."""
    if len(outputs) != 1:
        return 0
    ((dtype, shape),) = outputs.values()
    is_vector = dtype == "float32" and len(shape) == 2 and shape[0] == 1 and shape[1] > 1
    return shape[1] if is_vector else 0


def exported_preprocess(
    exported: ExporterMetadata, inputs: Mapping[str, Array]
) -> Preprocess | None:
    """Return how pixels become the one of ``inputs``, as in the exporter's own programs.

    None: it takes no pictures.
    """
    arrays = list(inputs.values())
    if len(arrays) != 1 or arrays[0].dtype != "float32" or len(arrays[0].shape) != PICTURE_RANK:
        return None
    count, channels, height, width = arrays[0].shape
    if count != 1 or channels not in _COLORS or min(height, width) < 1:
        return None
    fields = {"size": (width, height), "color": _COLORS[channels], "scale": _SCALE}
    return read_record(Preprocess, {**fields, **_resizing(exported, width, height)})


def _resizing(exported: ExporterMetadata, width: int, height: int) -> dict[str, object]:
    """Return the fields that say how a picture gets to that size, as the exporter's own programs do it."""
    if exported.task == "classify":  # torchvision's transforms, of Pillow's pictures
        if width != height:
            return {"resize": "stretch"}
        return {"resize": "crop", "resize_size": (width,), "crop_rounding": "even"}
    if exported.is_detr:
        return {"resize": "stretch", "filter": "opencv"}
    return {"resize": "letterbox", "filter": "opencv", "pad_value": _PAD}


@dataclass(frozen=True)
class _Rows:
    """What the output ``name`` lists: ``boxes`` of ``length`` numbers each, ``extra`` behind the scores.

    ``masks``: what these are factors of.
    """

    name: str
    boxes: int
    length: int
    extra: int
    masks: Masks | None


def _detection(exported: ExporterMetadata, outputs: Forms) -> Detection | None:
    """Return the recipe of the first output, which lists boxes; None: not as these exporters do."""
    (name, (dtype, shape)), *others = outputs.items()
    masks = _masks(exported, others)
    extra = _extra(exported, masks)
    if dtype != "float32" or len(shape) != 3 or shape[0] != 1 or extra is None:
        return None
    _, rows, columns = shape
    return _by_class(exported, _Rows(name, columns, rows, extra, masks)) or _by_box(
        exported, _Rows(name, rows, columns, extra, masks)
    )


def _masks(
    exported: ExporterMetadata, others: Sequence[tuple[str, tuple[str, tuple[int, ...]]]]
) -> Masks | None:
    """Return the prototypes of masks, which come second, before ``others``; None: the task has none."""
    if exported.task not in (None, "segment") or not others:
        return None
    name, (_, shape) = others[0]
    if len(shape) != PICTURE_RANK or shape[1] < 1:
        return None
    masks = Masks(output=name, channels=shape[1])
    return None if masks.fault(dict(others)) else masks


def _extra(exported: ExporterMetadata, masks: Masks | None) -> int | None:
    """Return how many numbers follow box and scores; None: no boxes are what the task lists."""
    match exported.task:
        case None:
            return masks.channels if masks else 0
        case "detect":
            return 0
        case "segment":
            return masks.channels if masks else None
        case "pose":
            return math.prod(exported.keypoints) if exported.keypoints else None
        case "obb":
            return 1
    return None


def _by_class(exported: ExporterMetadata, rows: _Rows) -> Detection | None:
    """Return the recipe where first all left edges are listed, at last all probabilities of one class."""
    classes = len(exported.labels)
    if not classes and exported.task is not None and rows.length < rows.boxes:  # without names
        classes = rows.length - _BOX - rows.extra
    if classes < 1 or rows.length != _BOX + classes + rows.extra:
        return None
    return _recipe(exported, _listed_head(exported, rows, "yolov8", classes))


def _by_box(exported: ExporterMetadata, rows: _Rows) -> Detection | None:
    classes = len(exported.labels)
    length = rows.length - rows.extra
    if not classes:
        return None
    if exported.task is None:
        if length != _BOX + 1 + classes:
            return None
        head = _listed_head(exported, rows, "yolov5", classes)
        return _recipe(exported, head, iou_threshold=_IOU_YOLOV5)
    # Of two classes and no name of the head: versions that had none listed a score a class.
    is_ranked = length == _RANKED and (classes != _RANKED - _BOX or exported.has_head)
    if not is_ranked and length != _BOX + classes:
        return None
    if is_ranked and not _sees_stretched(exported):
        head = _listed_head(exported, rows, "yolov10", classes)
        return _recipe(exported, head, nms="none")
    centred = BoxesHead(
        kind="boxes",
        boxes=rows.name,
        scores=rows.name,
        classes=classes,
        scores_at=_BOX,
        index_at=_BOX + 1 if is_ranked else None,
        box="centre",
        masks=rows.masks,
    )
    return _recipe(exported, centred, nms="none")


def _sees_stretched(exported: ExporterMetadata) -> bool:
    """Return whether ranked boxes are those of the DETR family, by centre and in parts of the input.

    Others have their boxes suppressed inside, if the metadata say anything of it.
    """
    if exported.is_detr is None:
        return exported.is_suppressed is False
    return exported.is_detr


def _listed_head(
    exported: ExporterMetadata, rows: _Rows, kind: ListedKind, classes: int
) -> ListedHead:
    is_pose, is_rotated = exported.task == "pose", exported.task == "obb"
    return ListedHead(
        output=rows.name,
        kind=kind,
        classes=classes,
        keypoints=exported.keypoints if is_pose else None,
        rotated=is_rotated,
        masks=rows.masks,
    )


def _recipe(
    exported: ExporterMetadata,
    head: ListedHead | BoxesHead,
    nms: Literal["greedy", "none"] = "greedy",
    iou_threshold: float = _IOU,
) -> Detection:
    return Detection(
        heads=(head,),
        labels=exported.labels,
        nms=nms,
        multi_label=False,
        iou_threshold=iou_threshold,
    )
