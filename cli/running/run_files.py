"""What ``layerstream run`` writes of an answer: its tensors, a drawing of what was found, a mask."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from PIL import Image

from cli.running.answers import Found
from cli.running.files import check_output, save_outputs
from models.packs.pack import Pack
from models.segmentation import Mask
from models.whole_files import users_file
from pipeline.execution.errors import InputError
from pipeline.execution.given import Arrays

# Formats for colours that Pillow always has, by the ends of their files' names.
_DRAWINGS = {
    ".png": "PNG",
    ".jpg": "JPEG",
    ".jpeg": "JPEG",
    ".webp": "WEBP",
    ".bmp": "BMP",
    ".tif": "TIFF",
    ".tiff": "TIFF",
    ".ppm": "PPM",
}
# Thin lines in strong colours are what these formats are worst at.
_QUALITY: dict[str, dict[str, Any]] = {
    "JPEG": {"quality": 95, "subsampling": 0},
    "WEBP": {"quality": 95},
}


@dataclass(frozen=True)
class RunFiles:
    """The files that are wanted: of tensors, of the image with what was found, of the mask alone."""

    output: Path | None = None
    draw: Path | None = None
    mask: Path | None = None

    @property
    def paths(self) -> list[Path]:
        """Those that are."""
        return [path for path in (self.output, self.draw, self.mask) if path is not None]

    def check(self, pack: Pack, image: Path | None) -> None:
        """Refuse, before the model runs, what cannot be written.

        Raises:
            InputError: it cannot; the message says which, and why.
        """
        if self.draw is not None:
            _check_drawing(pack, self.draw, image)
        if self.mask is not None:
            _check_mask(pack, self.mask)
        if self.output is not None:
            check_output(pack, self.output)

    def write_tensors(self, outputs: Arrays) -> None:
        """Write ``outputs``, where they are wanted; they are not copied.

        Raises:
            InputError: the file cannot be written.
        """
        if self.output is not None:
            save_outputs(self.output, outputs)

    def write(self, answer: Found, picture: Image.Image | None) -> None:
        """Write the pictures of ``answer``; ``picture``: the one that it is about.

        Raises:
            InputError: a file cannot be written.
        """
        if self.draw is not None and picture is not None:
            _save_drawing(self.draw, picture, answer)
        if self.mask is not None and answer.mask is not None:
            _save_mask(self.mask, answer.mask)


def _check_mask(pack: Pack, path: Path) -> None:
    """Refuse, before the model runs, to write a mask where there will be none.

    Raises:
        InputError: the model makes none, or ``path`` is no PNG.
    """
    if pack.manifest.segmentation is None:
        raise InputError(f"{pack.folder}: --mask: the model does not segment: it has no mask")
    if path.suffix.lower() != ".png":
        raise InputError(f"{path}: --mask: not the name of a PNG")


def _save_mask(path: Path, mask: Mask) -> None:
    """Write ``mask`` to ``path`` as a PNG whose pixels are classes.

    Raises:
        InputError: it cannot be written.
    """
    from server.requests.masks import png

    try:
        with users_file(path) as file:
            file.writelines(png(mask))
    except OSError as exc:
        raise InputError(f"{path}: {exc.strerror or exc}") from exc


def _check_drawing(pack: Pack, path: Path, image: Path | None) -> None:
    """Refuse, before the model runs, what cannot be drawn.

    Raises:
        InputError: the model finds nothing, there is no image, or no format ends as ``path`` does.
    """
    manifest = pack.manifest
    if not (manifest.detection or manifest.segmentation or manifest.depth):
        raise InputError(f"{pack.folder}: --draw: not a detector: it has no boxes to draw")
    if image is None:
        raise InputError(f"{path}: --draw needs --image: there is nothing to draw on")
    if path.suffix.lower() not in _DRAWINGS:
        raise InputError(f"{path}: --draw: not a picture's name: {', '.join(_DRAWINGS)}")


def _save_drawing(path: Path, picture: Image.Image, answer: Found) -> None:
    """Write ``picture`` and what ``answer`` has to ``path``, in the format of its name.

    Raises:
        InputError: it cannot be written.
    """
    from models.drawing import draw_boxes, draw_depth, draw_mask  # fonts take a while to import

    kind = _DRAWINGS[path.suffix.lower()]
    if answer.mask is not None:
        drawn = draw_mask(picture, answer.mask)
    elif answer.depth is not None:
        drawn = draw_depth(picture, answer.depth)
    else:
        drawn = draw_boxes(picture, answer.boxes or [])
    try:
        with users_file(path) as file:
            drawn.save(file, kind, **_QUALITY.get(kind, {}))
    except OSError as exc:
        raise InputError(f"{path}: {exc.strerror or exc}") from exc
    except ValueError as exc:  # larger than the format can be
        raise InputError(f"{path}: {exc}") from exc
