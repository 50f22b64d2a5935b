"""What an ONNX file says about itself beyond ONNX: entries of ``metadata_props``, ours each a JSON text.

Importers and the zoo write them; ``compile`` reads them, so that such a file needs no further flags.
Other tools ignore unknown entries. What exporters of YOLO write is read in ``exported.py``.
"""

import contextlib
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import onnx
from pydantic import TypeAdapter, ValidationError

from models.detection.recipe import Detection
from models.errors import OnnxError, first_fault
from models.graphs.exported import ExporterMetadata, read_exported
from models.images.preprocess import Preprocess
from models.packs.records.ports import DesignedMemory, SourceSizes
from models.segmentation import Segmentation

T = TypeVar("T")

#: Preprocess (models/images/preprocess.py): how an image becomes the one input.
PREPROCESS = "layerstream.preprocess"
#: Detection (models/detection/recipe.py): how the outputs become boxes.
DETECTION = "layerstream.detection"
#: Segmentation (models/test_segmentation.py): how an output becomes a mask.
SEGMENTATION = "layerstream.segmentation"
#: A list of texts: the classes in the order of the scores.
LABELS = "layerstream.labels"
#: SourceSizes (models/packs/records/ports.py): what the tool that the network comes from counts.
SIZES = "layerstream.sizes"
#: DesignedMemory (models/packs/records/ports.py): what was counted when the network was designed.
MEMORY = "layerstream.memory"


def write_metadata(model: onnx.ModelProto, entries: Mapping[str, Any]) -> None:
    """Set ``entries`` (values that JSON can hold) in the metadata of ``model``."""
    kept = {item.key: item.value for item in model.metadata_props}
    kept |= {key: json.dumps(value, separators=(",", ":")) for key, value in entries.items()}
    del model.metadata_props[:]
    for key, value in kept.items():
        model.metadata_props.add(key=key, value=value)


@dataclass(frozen=True)
class Metadata:
    """What a file says about itself; what it does not say is None or empty."""

    preprocess: Preprocess | None = None
    detection: Detection | None = None
    segmentation: Segmentation | None = None
    labels: tuple[str, ...] = ()
    sizes: SourceSizes | None = None
    memory: DesignedMemory | None = None
    exported: ExporterMetadata | None = None


def picture_of(model: onnx.ModelProto) -> Sequence[int]:
    """Return the shape of the picture that the exporter of ``model`` says it takes; empty: it says none."""
    exported = read_exported(_entries(model), lambda text: None)
    if exported is None or exported.size is None:
        return ()
    width, height = exported.size
    return 1, exported.channels, height, width


def _entries(model: onnx.ModelProto) -> dict[str, str]:
    """Return the entries of ``model`` whose texts are UTF-8; of others protobuf gives bytes, or fails."""
    entries: dict[str, str] = {}
    for item in model.metadata_props:
        with contextlib.suppress(UnicodeDecodeError):
            value: object = item.value
            if isinstance(value, str):
                entries[item.key] = value
    return entries


def read_metadata(
    model: onnx.ModelProto, source: Path, warn: Callable[[str], None] = lambda text: None
) -> Metadata:
    """Return what the metadata of ``model``, which was read from ``source``, says.

    ``warn`` is called with a line for an entry of an exporter that is not what it should be.

    Raises:
        OnnxError: an entry of ours is not JSON or not what it should be; the message names it.
    """
    entries = _entries(model)

    def read(key: str, kind: type[T]) -> T | None:
        if key not in entries:
            return None
        try:
            return TypeAdapter(kind).validate_json(json.dumps(json.loads(entries[key])))
        except ValidationError as exc:
            raise OnnxError(f"{source}: metadata {key}: {first_fault(exc)}") from exc
        except (ValueError, RecursionError) as exc:
            raise OnnxError(f"{source}: metadata {key}: not JSON: {exc}") from exc

    return Metadata(
        preprocess=read(PREPROCESS, Preprocess),
        detection=read(DETECTION, Detection),
        segmentation=read(SEGMENTATION, Segmentation),
        labels=read(LABELS, tuple[str, ...]) or (),
        sizes=read(SIZES, SourceSizes),
        memory=read(MEMORY, DesignedMemory),
        exported=read_exported(entries, lambda text: warn(f"{source}: {text}")),
    )
