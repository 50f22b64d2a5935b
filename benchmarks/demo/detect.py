"""The first demonstration: the shipped detector is served, and what it finds drawn in a photograph."""

import json
import urllib.request
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from PIL import Image

from benchmarks.commands import layerstream
from benchmarks.servers.served import ours, running
from models.cells import FOLDER
from models.detection.boxes import Box
from models.drawing import draw_boxes

PHOTOGRAPH = FOLDER / "cells.jpg"
_NAME = "cells"
_SECONDS = 60.0


@dataclass(frozen=True)
class Detected:
    """What came of it. Bytes: of the service with its requests, and of the weights on the disk."""

    boxes: list[Box]
    budget: int
    file_bytes: int


def detect(folder: Path) -> Detected:
    """Compile the detector into ``folder``, which is empty, serve it in the least budget, and ask it.

    Raises:
        NotReadyError: it did not start. OSError: it does not answer.
    """
    repository = folder / "repository"
    pack = layerstream("compile", str(FOLDER / "detector.onnx"), "-o", str(repository / _NAME))
    budget = pack["smallest_budget_bytes"]
    with running(ours(repository, str(budget)), "--port") as served:
        answer = _asked(f"{served.base}/v2/models/{_NAME}:detect")
    return Detected([_box(item) for item in answer["detections"]], budget, pack["file_bytes"])


def _asked(url: str) -> Mapping[str, Any]:
    request = urllib.request.Request(url, PHOTOGRAPH.read_bytes())
    with urllib.request.urlopen(request, timeout=_SECONDS) as response:
        found: Mapping[str, Any] = json.loads(response.read())
        return found


def _box(item: Mapping[str, Any]) -> Box:
    left, top, right, bottom = item["box"]
    return Box(item["index"], item["label"], item["score"], (left, top, right, bottom))


def sentence(found: Detected) -> str:
    """Return what is printed at the end."""
    counts = Counter(box.label for box in found.boxes)
    listed = ", ".join(f"{count} {label}" for label, count in counts.most_common()) or "nothing"
    return (
        f"A detector of blood cells, {found.file_bytes / 1e6:.1f} MB of weights, served in "
        f"{found.budget / 1e6:.1f} MB, requests included, finds in {PHOTOGRAPH.name}: {listed}."
    )


def draw(found: Detected, path: Path) -> None:
    """Write the photograph with boxes to ``path``."""
    draw_boxes(Image.open(PHOTOGRAPH).convert("RGB"), found.boxes).save(path)
