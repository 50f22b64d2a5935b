"""Which trainings there are, most telling first: ablations on CIFAR-10 (seed 004, Tables 3 to 6), BCCD."""

from collections.abc import Iterator
from dataclasses import replace

from benchmarks.training import bccd as cells
from benchmarks.training.cifar10 import ClassificationRun
from models.zoo.patchnet.design import DesignOptions

#: 4 KiB as int8. A margin of 4 of 32 pixels is what 18 is of 224, and some.
BASE = DesignOptions(
    budget=4096, image=(32, 32, 3), patches=4, central=True, margin=4, expansion=4, stem=16
)
EPOCHS, IMAGES = 8, 20_000
#: Height and width of a patch of BASE.
_PATCH = 20


def cifar10() -> Iterator[tuple[str, ClassificationRun]]:
    """Yield every training by name."""
    for seed in (0, 1, 2):
        for name, options in _first():
            yield f"cifar10-{name}-seed{seed}", ClassificationRun(options, seed, EPOCHS, IMAGES)
        if seed == 0:
            for name, options in _then():
                yield f"cifar10-{name}-seed{seed}", ClassificationRun(options, seed, EPOCHS, IMAGES)


def _first() -> Iterator[tuple[str, DesignOptions]]:
    yield "base", BASE
    yield "no-central", replace(BASE, central=False)
    yield "margin0", replace(BASE, margin=0)
    yield "margin0-no-central", replace(BASE, margin=0, central=False)
    yield "margin2", replace(BASE, margin=2)
    yield "margin2-no-central", replace(BASE, margin=2, central=False)


def _then() -> Iterator[tuple[str, DesignOptions]]:
    for expansion in (2, 8, 6):
        yield f"expansion{expansion}", replace(BASE, expansion=expansion)
    for tunnels in (5, 2, 4, 3):
        yield (
            f"whole{tunnels}",
            replace(BASE, image=(_PATCH, _PATCH, 3), patches=tunnels, whole=True),
        )


#: Resolution, budget in numbers, margin: as much for the patch and the stem as they need.
_BCCD = ((130, 44_000, 10), (224, 120_000, 18), (300, 216_000, 24))
BCCD_EPOCHS = 80


def bccd() -> Iterator[tuple[str, cells.DetectionRun]]:
    """Yield the detectors by name: tunnels share their weights, since there are few photographs."""
    for resolution, budget, margin in _BCCD:
        options = DesignOptions(
            budget=budget,
            image=(resolution, resolution, 3),
            margin=margin,
            expansion=4,
            stem=16,
            shared=True,
        )
        yield f"bccd-{resolution}", cells.DetectionRun(options, 0, BCCD_EPOCHS)
