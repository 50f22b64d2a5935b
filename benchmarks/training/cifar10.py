"""Train a classifier on CIFAR-10: what one run is, and one epoch of it."""

import io
import itertools
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from torch.nn import functional as F

from benchmarks.training.module import SkeletonModule
from benchmarks.training.resuming import Resumable
from models.zoo.patchnet.design import DesignOptions, design
from models.zoo.patchnet.tunnels import classifier

LABELS = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")
#: As the zoo's recipe has it: colours from -1 to 1.
MEAN = STD = 127.5
_BATCH = 64
_SHIFT = 4
_TEST_BATCH = 500


@dataclass(frozen=True)
class ImageSet:
    """Images uint8 [N, 3, 32, 32] and labels int64 [N]."""

    images: torch.Tensor
    labels: torch.Tensor


@dataclass(frozen=True)
class ClassificationData:
    """What is trained on, and what is kept to test on."""

    train: ImageSet
    test: ImageSet


def read(path: Path) -> ClassificationData:
    """Read an .npz: ``train_jpeg`` (bytes), ``train_offsets``, ``train_labels``, and the same of ``test_``.

    Raises:
        OSError: it cannot be read. KeyError: it has no such arrays.
    """
    with np.load(path) as data:
        return ClassificationData(*(_part(data, name) for name in ("train", "test")))


def _part(data: np.lib.npyio.NpzFile, name: str) -> ImageSet:
    jpeg = data[f"{name}_jpeg"].tobytes()
    offsets = data[f"{name}_offsets"]
    images = np.empty((len(offsets) - 1, 3, 32, 32), np.uint8)
    for image, (start, end) in zip(images, itertools.pairwise(offsets), strict=True):
        opened = Image.open(io.BytesIO(jpeg[start:end])).convert("RGB")
        image[...] = np.asarray(opened).transpose(2, 0, 1)
    labels = torch.from_numpy(data[f"{name}_labels"].astype(np.int64))
    return ImageSet(torch.from_numpy(images), labels)


@dataclass(frozen=True)
class ClassificationRun:
    """One training of ``epochs`` times over ``images`` of the training set, which all runs draw alike."""

    options: DesignOptions
    seed: int
    epochs: int
    images: int = 50_000
    rate: float = 0.1

    @property
    def score(self) -> str:
        """What `Trainer.test` returns."""
        return "accuracy"

    def trainer(self, data: ClassificationData) -> "ClassifierTrainer":
        return ClassifierTrainer(self, data)

    def module(self) -> SkeletonModule:
        """Return the network that is trained."""
        return SkeletonModule(classifier(design(self.options), len(LABELS)), self.seed)


class ClassifierTrainer(Resumable):
    """SGD with Nesterov momentum and one learning-rate cycle; all that is random comes from the seed."""

    def __init__(self, run: ClassificationRun, data: ClassificationData) -> None:
        self.module = run.module()
        self._run = run
        self._data = data
        self._generator = torch.Generator().manual_seed(run.seed)
        # The file is sorted by label.
        drawn = torch.randperm(len(data.train.labels), generator=torch.Generator().manual_seed(0))
        self._drawn = drawn[: run.images]
        self._optimiser = torch.optim.SGD(
            self.module.parameters(), run.rate, momentum=0.9, nesterov=True, weight_decay=1e-4
        )
        self._schedule = torch.optim.lr_scheduler.OneCycleLR(
            self._optimiser, run.rate, total_steps=run.epochs * (run.images // _BATCH)
        )

    def epoch(self) -> dict[str, float]:
        """Train on each image once; return the mean loss."""
        self.module.train()
        train = self._data.train
        order = self._drawn[torch.randperm(self._run.images, generator=self._generator)]
        losses = []
        for index in order.split(_BATCH)[: self._run.images // _BATCH]:
            x, y = self._sized(self._varied(train.images[index])), train.labels[index]
            loss = F.cross_entropy(self.module(x, ["logits"])[0], y, label_smoothing=0.1)
            self._optimiser.zero_grad()
            loss.backward()
            self._optimiser.step()
            self._schedule.step()
            losses.append(loss.item())
        return {"loss": float(np.mean(losses))}

    def _varied(self, images: torch.Tensor) -> torch.Tensor:
        """Return ``images`` as numbers, each shifted by up to 4 pixels, half of them mirrored."""
        padded = F.pad(normalised(images), (_SHIFT,) * 4, mode="reflect")
        count, grid = len(images), torch.arange(images.shape[-1])
        shifts = torch.randint(0, 2 * _SHIFT + 1, (2, count, 1), generator=self._generator)
        rows, columns = shifts[0] + grid, shifts[1] + grid
        mirrored = torch.rand(count, 1, generator=self._generator) < 0.5
        columns = torch.where(mirrored, columns.flip(1), columns)
        return padded[
            torch.arange(count)[:, None, None, None],
            torch.arange(3)[None, :, None, None],
            rows[:, None, :, None],
            columns[:, None, None, :],
        ]

    def _sized(self, images: torch.Tensor) -> torch.Tensor:
        """Return ``images`` as large as the network takes them."""
        size = self._run.options.image[:2]
        if images.shape[2:] == size:
            return images
        return F.interpolate(images, size, mode="bilinear", antialias=True)

    def test(self) -> dict[str, float]:
        """Return the share of all test images whose largest logit is their label."""
        self.module.eval()
        test = self._data.test
        with torch.inference_mode():
            hits = sum(
                int((self.module(self._sized(normalised(x)), ["logits"])[0].argmax(1) == y).sum())
                for x, y in zip(
                    test.images.split(_TEST_BATCH), test.labels.split(_TEST_BATCH), strict=True
                )
            )
        return {"accuracy": hits / len(test.labels)}


def normalised(images: torch.Tensor) -> torch.Tensor:
    """Return colours from -1 to 1."""
    return (images.float() - MEAN) / STD
