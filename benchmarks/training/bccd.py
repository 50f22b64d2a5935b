"""Train a detector on BCCD: blood cells in 364 photographs, 72 of which are kept to test on."""

import io
import re
import zipfile
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from torch.nn import functional as F

from benchmarks.training.matching import box_loss, focal_loss, matched
from benchmarks.training.module import SkeletonModule
from benchmarks.training.resuming import Resumable
from models.detection.boxes import BoxLimits, find_boxes
from models.detection.mean_precision import MeanPrecision, TrueObject
from models.graphs.metadata import read_metadata
from models.zoo.patchnet.design import DesignOptions, design
from models.zoo.patchnet.tunnels import OUTPUT, Anchors, detector, score_biases

LABELS = ("RBC", "WBC", "Platelets")
#: What the cells of each kind measure, as parts of the photograph.
ANCHORS: Anchors = (
    ((0.06, 0.08), (0.13, 0.17)),
    ((0.164, 0.21), (0.2, 0.26)),
    ((0.27, 0.33), (0.37, 0.45)),
)
_FOLDER = "BCCD"
_BATCH = 8
#: Photographs are kept this much larger than the network's input, to be cut from.
_LARGER = 1.25
_LEAST_CUT = 0.7
#: As the zoo's recipe has it: colours from -1 to 1.
MEAN = 127.5
_TEST_SCORE = 0.02


@dataclass(frozen=True)
class LabelledPhotograph:
    """A JPEG and what is on it: edges float32 [n, 4] as parts of it (x0, y0, x1, y1), classes int64 [n]."""

    jpeg: bytes
    edges: torch.Tensor
    classes: torch.Tensor


@dataclass(frozen=True)
class DetectionData:
    """What is trained on, and what is kept to test on."""

    train: list[LabelledPhotograph]
    test: list[LabelledPhotograph]


def read(path: Path) -> DetectionData:
    """Read the zip: photographs, annotations of Pascal VOC's form, lists of trainval and test.

    Raises:
        OSError, zipfile.BadZipFile: it cannot be read. KeyError: an entry is missing.
    """
    with zipfile.ZipFile(path) as archive:

        def part(name: str) -> list[LabelledPhotograph]:
            names = archive.read(f"{_FOLDER}/ImageSets/Main/{name}.txt").decode().split()
            return [_photograph(archive, each) for each in names]

        return DetectionData(part("trainval"), part("test"))


def _photograph(archive: zipfile.ZipFile, name: str) -> LabelledPhotograph:
    text = archive.read(f"{_FOLDER}/Annotations/{name}.xml").decode()
    size = np.array([_number(text, "width"), _number(text, "height")] * 2, np.float32)
    edges, classes = [], []
    for item in re.findall(r"<object>(.*?)</object>", text, re.DOTALL):
        label = re.search(r"<name>(.*?)</name>", item)
        assert label is not None, f"{name}: an object without a name"
        edges.append([_number(item, edge) for edge in ("xmin", "ymin", "xmax", "ymax")])
        classes.append(LABELS.index(label[1]))
    relative = np.array(edges, np.float32).reshape(-1, 4) / size
    wide = np.all(relative[:, 2:] > relative[:, :2], axis=1)
    return LabelledPhotograph(
        archive.read(f"{_FOLDER}/JPEGImages/{name}.jpg"),
        torch.from_numpy(relative[wide]),
        torch.from_numpy(np.array(classes, np.int64)[wide]),
    )


def _number(text: str, name: str) -> float:
    found = re.search(rf"<{name}>\s*([-0-9.]+)\s*</{name}>", text)
    assert found is not None, f"no {name} in an annotation"
    return float(found[1])


@dataclass(frozen=True)
class DetectionRun:
    """One training of ``epochs`` times over the photographs."""

    options: DesignOptions
    seed: int
    epochs: int
    rate: float = 3e-3

    def trainer(self, data: DetectionData) -> "DetectorTrainer":
        return DetectorTrainer(self, data)

    def module(self) -> SkeletonModule:
        """Return the network that is trained."""
        made = design(self.options)
        biases = score_biases(made, len(LABELS), ANCHORS)
        return SkeletonModule(detector(made, len(LABELS), ANCHORS, LABELS), self.seed, biases)


class DetectorTrainer(Resumable):
    """AdamW with one learning-rate cycle; focal loss of classes, smooth L1 of boxes (SSD's offsets)."""

    def __init__(self, run: DetectionRun, data: DetectionData) -> None:
        self.module = run.module()
        self._size = run.options.image[:2]
        self._train = [self._kept(photograph, _LARGER) for photograph in data.train]
        self._photographs = data
        self._generator = torch.Generator().manual_seed(run.seed)
        self._optimiser = torch.optim.AdamW(self.module.parameters(), run.rate, weight_decay=1e-3)
        self._schedule = torch.optim.lr_scheduler.OneCycleLR(
            self._optimiser, run.rate, total_steps=run.epochs * (len(data.train) // _BATCH)
        )
        nodes = self.module.skeleton.graph.node
        self._scores = next(node for node in reversed(nodes) if node.op_type == "Sigmoid").input[0]
        corners = [self.module.constants[name] for name in ("anchors.centres", "anchors.sizes")]
        self._anchors = torch.from_numpy(np.concatenate(corners, axis=1)[0].T.astype(np.float32))

    def _kept(self, photograph: LabelledPhotograph, factor: float) -> torch.Tensor:
        """Return the pixels uint8 [3, height, width] of ``photograph``, so much larger than the input."""
        height, width = (round(side * factor) for side in self._size)
        picture = Image.open(io.BytesIO(photograph.jpeg)).convert("RGB")
        pixels = np.asarray(picture.resize((width, height), Image.Resampling.BILINEAR))
        return torch.from_numpy(pixels.transpose(2, 0, 1).copy())

    def epoch(self) -> dict[str, float]:
        """Train on each photograph once; return the mean losses."""
        self.module.train()
        order = torch.randperm(len(self._train), generator=self._generator)
        losses = []
        for index in order.split(_BATCH)[: len(self._train) // _BATCH]:
            varied = [self._varied(int(number)) for number in index]
            images = torch.stack([image for image, _, _ in varied])
            output, scores = self.module(normalised(images), [OUTPUT, self._scores])
            targets = [matched(self._anchors, edges, classes) for _, edges, classes in varied]
            places = box_loss(output[:, :4], self._anchors, targets)
            kinds = focal_loss(scores, targets)
            self._optimiser.zero_grad()
            (places + kinds).backward()
            self._optimiser.step()
            self._schedule.step()
            losses.append((places.item(), kinds.item()))
        boxes, classes = np.mean(losses, axis=0)
        return {"boxes": round(float(boxes), 4), "classes": round(float(classes), 4)}

    def _varied(self, number: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Return a part of a photograph at the input's size, perhaps mirrored, and what is on it in pixels.

        Cells whose centre is outside are left out; others are cut at the border.
        """
        image, photograph = self._train[number], self._photographs.train[number]
        draw = torch.rand(6, generator=self._generator).tolist()
        part = _LEAST_CUT + (1 - _LEAST_CUT) * draw[0]
        top, left = (1 - part) * draw[1], (1 - part) * draw[2]
        rows, columns = image.shape[1:]
        cut = image[
            :,
            round(top * rows) : round((top + part) * rows),
            round(left * columns) : round((left + part) * columns),
        ]
        sized = F.interpolate(cut[None].float(), self._size, mode="bilinear", antialias=True)[0]
        sized = ((sized - MEAN) * (0.8 + 0.4 * draw[5]) + MEAN).clamp(0, 255)
        edges = (photograph.edges - torch.tensor([left, top] * 2)) / part
        centres = (edges[:, :2] + edges[:, 2:]) / 2
        inside = ((centres > 0) & (centres < 1)).all(1)
        edges, classes = edges[inside].clamp(0, 1), photograph.classes[inside]
        if draw[3] < 0.5:
            sized, edges = sized.flip(2), _mirrored(edges, 0)
        if draw[4] < 0.5:
            sized, edges = sized.flip(1), _mirrored(edges, 1)
        height, width = self._size
        return sized, edges * torch.tensor([width, height, width, height]), classes

    def test(self) -> dict[str, float]:
        """Return the mean average precision at an overlap of 0.5 on the photographs kept for it."""
        self.module.eval()
        metadata = read_metadata(self.module.skeleton, Path("skeleton"))
        assert metadata.detection is not None
        assert metadata.preprocess is not None
        counted = MeanPrecision()
        for photograph in self._photographs.test:
            picture = Image.open(io.BytesIO(photograph.jpeg)).convert("RGB")
            with torch.inference_mode():
                image = torch.from_numpy(metadata.preprocess.apply(picture))
                outputs = {OUTPUT: self.module(image, [OUTPUT])[0].numpy()}
            boxes = find_boxes(
                outputs, metadata.detection, metadata.preprocess, (1, 1), BoxLimits(_TEST_SCORE)
            )
            there = zip(photograph.classes.tolist(), photograph.edges.tolist(), strict=True)
            counted.add(boxes, [TrueObject(index, edges) for index, edges in there])
        named = {f"AP {LABELS[index]}": ap for index, ap in counted.by_class().items()}
        return {"mAP": counted.mean(), **named}


def normalised(images: torch.Tensor) -> torch.Tensor:
    """Return colours from -1 to 1."""
    return (images - MEAN) / MEAN


def _mirrored(edges: torch.Tensor, axis: int) -> torch.Tensor:
    turned = edges.clone()
    turned[:, axis], turned[:, axis + 2] = 1 - edges[:, axis + 2], 1 - edges[:, axis]
    return turned
