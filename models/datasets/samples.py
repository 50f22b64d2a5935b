"""One picture of a data set and what is known of it; and folders of pictures as a data set."""

import contextlib
import io
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from PIL import Image, ImageOps, UnidentifiedImageError

from models.errors import ModelError

#: What the names of pictures end with.
SUFFIXES = frozenset(
    (".bmp", ".gif", ".jpeg", ".jpg", ".pgm", ".png", ".ppm", ".tif", ".tiff", ".webp")
)

#: Broken pictures that are named.
_SHOWN = 5


class DataError(ModelError):
    """A data set, or one of its files, cannot be used; the message names it."""


class SampleError(DataError):
    """One sample is broken; others may be whole."""


@dataclass(frozen=True)
class Marked:
    """An object in a picture: class, x_min, y_min, x_max, y_max in pixels, whether it may be missed."""

    name: str
    edges: tuple[float, float, float, float]
    difficult: bool = False


@dataclass(frozen=True)
class Sample:
    """A picture called ``name``; ``label``: its class, None: unknown. ``objects``: None: unknown.

    ``open``: reads it, RGB; ``marks``: reads its objects. Both raise SampleError.
    """

    name: str
    open: Callable[[], Image.Image]
    label: str | None = None
    marks: Callable[[], tuple[Marked, ...]] | None = None


@dataclass(frozen=True)
class Dataset:
    """``samples`` makes them anew, always in the same order.

    ``classes``: of the samples, in their order, none: unknown. ``marked``: objects in them are known.
    """

    name: str
    count: int
    samples: Callable[[], Iterator[Sample]]
    classes: tuple[str, ...] = ()
    marked: bool = False

    def check_pictures(self) -> None:
        """Read all pictures.

        Raises:
            SampleError: some are broken; the message says how many, and which are the first.
        """
        faults = []
        for sample in self.samples():
            try:
                sample.open()
            except SampleError as exc:
                faults.append(str(exc))
        if faults:
            more = f"; and {len(faults) - _SHOWN} more" if len(faults) > _SHOWN else ""
            raise SampleError(
                f"{len(faults)} of {self.count} pictures cannot be used: {'; '.join(faults[:_SHOWN])}{more}"
            )

    def objects(self) -> Counter[str]:
        """Return how many objects of each class are marked; annotations that cannot be read have none."""
        counted: Counter[str] = Counter()
        for sample in self.samples():
            with contextlib.suppress(SampleError):
                counted.update(mark.name for mark in (sample.marks or tuple)())
        return counted

    def pictures(self, most: int | None = None) -> Iterator[Image.Image]:
        """Yield the picture of each sample, of ``most`` at even distances if it is given.

        Raises:
            SampleError: one is broken.
        """
        count = self.count if most is None else min(most, self.count)
        chosen = {number * self.count // count for number in range(count)}
        for number, sample in enumerate(self.samples()):
            if number in chosen:
                yield sample.open()


def picture(name: str, source: Path | bytes) -> Image.Image:
    """Return the picture in the file or bytes ``source``, RGB, turned as its EXIF orientation says.

    Raises:
        SampleError: it is none, or is damaged; it is called ``name``.
    """
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of odd files, on standard error
            opened = Image.open(source if isinstance(source, Path) else io.BytesIO(source))
            with opened as image:
                return ImageOps.exif_transpose(image).convert("RGB")
    except FileNotFoundError as exc:
        raise SampleError(f"{name}: no such file") from exc
    except Exception as exc:  # decoders raise whatever their parsing stumbles over
        reason = str(exc).split(": ", 1)[0] if isinstance(exc, OSError) else type(exc).__name__
        if isinstance(
            exc, UnidentifiedImageError
        ):  # which quotes the file, or its object in memory
            reason = "no known format"
        reason = reason or type(exc).__name__
        raise SampleError(f"{name}: not a picture that can be read ({reason})") from exc


# A folder of pictures, or of folders that are named like their classes.


def read_folder(folder: Path) -> Dataset:
    """Return the pictures of ``folder``: those of its folders have these as classes, else none has one.

    Raises:
        DataError: it is no folder, has no pictures, or has both.
    """
    if not folder.is_dir():
        raise DataError(f"{folder}: {'not a folder' if folder.exists() else 'no such folder'}")
    own = _pictures(folder)
    classes = {path.name: _pictures(path) for path in sorted(folder.iterdir()) if path.is_dir()}
    classes = {name: paths for name, paths in classes.items() if paths}
    if own and classes:
        raise DataError(
            f"{folder}: pictures beside folders of pictures ({own[0].name}, {next(iter(classes))}/): "
            "either all are in folders named like their classes, or none is"
        )
    if not own and not classes:
        raise DataError(f"{folder}: no pictures in it ({', '.join(sorted(SUFFIXES))})")
    labelled: list[tuple[Path, str | None]] = [(path, None) for path in own]
    labelled += [(path, name) for name, paths in classes.items() for path in paths]

    def samples() -> Iterator[Sample]:
        for path, label in labelled:
            name = str(path.relative_to(folder))
            yield Sample(name, partial(picture, str(path), path), label)

    return Dataset(folder.name, len(labelled), samples, tuple(classes))


def _pictures(folder: Path) -> list[Path]:
    return sorted(
        path
        for path in folder.iterdir()
        # A link that leads nowhere is a broken picture.
        if path.suffix.lower() in SUFFIXES and (path.is_file() or not path.exists())
    )
