"""Input segmentation: an image as overlapping patches (seed 004, Section 3.1, Eq. 1)."""

from dataclasses import dataclass

from models.errors import ModelError

#: Height, width and channels.
Size = tuple[int, int, int]

MOST_PATCHES = 64
#: Of a patch: as many as the first kernel takes.
LEAST_SIDE = 3


@dataclass(frozen=True)
class Patch:
    """Rows [top, top + height) and columns [left, left + width) of the image."""

    top: int
    left: int
    height: int
    width: int


def segment(image: Size, patches: int, margin: int, central: bool) -> tuple[Patch, ...]:
    """Return a grid of ``patches`` of one size over ``image``, row by row, then the central patch.

    A patch has (h / rows + margin) x (w / columns + margin) pixels (Eq. 1, where rows = columns = sqrt k),
    but never more than the image. Patches at the border end there, those between lie evenly, so
    neighbours of a grid of two share 2 x margin.

    Raises:
        ModelError: there is no such grid, or it leaves a patch fewer pixels than a kernel takes.
    """
    rows, columns = grid(patches)
    if margin < 0:
        raise ModelError(f"patchnet: margin {margin} is negative")
    height, width = (
        min(side, side // parts + margin) if side >= parts else 0
        for side, parts in zip(image[:2], (rows, columns), strict=True)
    )
    _check_pixels(image, (height, width), f"a grid of {rows} x {columns} patches")
    found = [
        Patch(top, left, height, width)
        for top in _starts(image[0], height, rows)
        for left in _starts(image[1], width, columns)
    ]
    if central:
        found.append(Patch((image[0] - height) // 2, (image[1] - width) // 2, height, width))
    return tuple(found)


def _check_pixels(image: Size, patch: tuple[int, int], what: str) -> None:
    if min(patch) < LEAST_SIDE:
        left = "no pixels" if min(patch) < 1 else f"{patch[0]} x {patch[1]} pixels"
        raise ModelError(
            f"patchnet: {what} leaves {left} of an image of {image[0]} x {image[1]}:"
            f" {LEAST_SIDE} x {LEAST_SIDE} are the least"
        )


def grid(patches: int) -> tuple[int, int]:
    """Return rows and columns of a grid of so many patches, as square as it can be.

    Raises:
        ModelError: none or too many.
    """
    check_count(patches)
    rows = max(n for n in range(1, patches + 1) if n * n <= patches and patches % n == 0)
    return rows, patches // rows


def check_count(patches: int) -> None:
    """Check that there may be so many patches.

    Raises:
        ModelError: none or too many.
    """
    if not 1 <= patches <= MOST_PATCHES:
        raise ModelError(f"patchnet: {patches} patches are not from 1 to {MOST_PATCHES}")


def _starts(side: int, extent: int, parts: int) -> list[int]:
    """Return where ``parts`` ranges of ``extent`` begin that lie evenly in ``side``."""
    return [(side - extent) * n // max(parts - 1, 1) for n in range(parts)]
