"""Pictures that come over HTTP: their containers are read, then Pillow decodes them, within limits.

Pillow sees a file only when what it takes is known from the container (models/images/containers) and held.
It is imported then: a server of tensors never needs it.
"""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO, Self

from models.images.containers import read_container
from models.images.containers.source import (
    UPRIGHT,
    Container,
    ContainerError,
    EndError,
    PictureSource,
    UnknownKindError,
)
from models.images.placement import Size
from models.sizes import format_size
from server.errors import InvalidRequestError, TooLargeError

if TYPE_CHECKING:
    from PIL.Image import Image

# Errors that say already what the client did.
_OURS = InvalidRequestError, TooLargeError

# EXIF orientations of pictures whose rows are columns, and what makes each upright.
_LYING = (5, 6, 7, 8)
# A turned picture is there twice, of up to so many bytes a pixel.
_TURNED_BYTES = 4
# Pillow has a pointer to each row, of up to three pictures at a time.
_ROW_BYTES = 3 * 8
# What every decoder takes in addition to pixels: tables, rows. The margin of the process has room for it.
_USUAL_WORK_BYTES = 128 << 10


def _any(size: Size) -> bool:
    return True


def _decoded_bytes(size: Size, decoding_bytes: int) -> int:
    return decoding_bytes


@dataclass(frozen=True)
class PictureLimits:
    """What one picture may take."""

    max_pixels: int
    max_bytes: int
    #: What a picture of some size takes in all, which takes so many bytes while it is decoded.
    needed_bytes: Callable[[Size, int], int] = _decoded_bytes
    #: Whether a picture that is larger may be decoded at this size, upright.
    may_become: Callable[[Size], bool] = _any

    def allow(self, size: Size, n_bytes: int) -> bool:
        """Return whether a picture of ``size`` that takes ``n_bytes`` in all is within them."""
        return size[0] * size[1] <= self.max_pixels and n_bytes <= self.max_bytes


def _decoding_bytes(container: Container, size: Size) -> int:
    """Return what decoding the picture at ``size`` takes, in addition to the file."""
    turned = _TURNED_BYTES if container.orientation != UPRIGHT else 0
    work = container.work_bytes + _ROW_BYTES * max(size)
    return size[0] * size[1] * (container.pixel_bytes + turned) + max(work - _USUAL_WORK_BYTES, 0)


def _needed(container: Container, scale: int, limits: PictureLimits) -> tuple[Size, int]:
    """Return the size of the picture at one ``scale``-th of its own, and what it takes in all."""
    size = -(-container.size[0] // scale), -(-container.size[1] // scale)
    return size, limits.needed_bytes(size, _decoding_bytes(container, size))


def _fitted(container: Container, limits: PictureLimits) -> tuple[int, int]:
    """Return the scale at which the picture is decoded within ``limits``, and what it takes in all.

    Raises:
        InvalidRequestError: it has too many pixels. TooLargeError: it takes too much memory.
    """
    size, needed = _needed(container, 1, limits)
    if limits.allow(size, needed):
        return 1, needed
    if container.shrinks and (shrunk := _shrunk(container, limits)):
        return shrunk
    if size[0] * size[1] > limits.max_pixels:
        raise InvalidRequestError(
            f"the image has {size[0]}x{size[1]} pixels; the limit is {limits.max_pixels} in all "
            "(setting max_image_pixels)"
        )
    raise TooLargeError(
        f"a request with an image of {size[0]}x{size[1]} pixels takes {format_size(needed)} of "
        f"memory; it may take {format_size(max(limits.max_bytes, 0))} (setting request_memory)"
    )


def _shrunk(container: Container, limits: PictureLimits) -> tuple[int, int] | None:
    """Return the largest of a half, a quarter and an eighth that is within ``limits``, as ``_fitted``.

    libjpeg makes smaller pixels straight from the coefficients, and holds few of those at a time when the
    file has one scan; of a progressive photograph it holds all, so nothing would be saved.
    """
    for scale in (2, 4, 8):
        size, needed = _needed(container, scale, limits)
        if not limits.may_become(size[::-1] if container.orientation in _LYING else size):
            return None
        if min(container.size) >= scale and limits.allow(size, needed):
            return scale, needed
    return None


@dataclass(frozen=True)
class Photograph:
    """A picture as RGB, upright; ``size`` is what it has in its file, where ``image`` may have less."""

    image: "Image"
    size: Size


def decode(source: Path | BinaryIO, limits: PictureLimits) -> Photograph:
    """Return the picture in ``source``, turned as its EXIF orientation says; blocks.

    Raises:
        InvalidRequestError: it is not a picture, is damaged, or has more pixels than ``limits`` allow.
        TooLargeError: decoding it would take more memory than they do.
    """
    with source.open("rb") if isinstance(source, Path) else source as file:
        return OpenedPicture(file, limits).decode()


class OpenedPicture:
    """A picture of which the container was read, in a ``file`` that is closed once it is decoded; blocks.

    What is behind the header may come later.
    """

    @classmethod
    def begun(cls, file: BinaryIO, limits: PictureLimits) -> Self | None:
        """Return what opens of a beginning; None: the header does not end there, or it is no picture.

        Raises:
            InvalidRequestError, TooLargeError: it is over ``limits``.
        """
        try:
            return cls(file, limits, is_whole=False)
        except InvalidRequestError as exc:
            if exc.__cause__ is None:
                raise
            return None  # of which its reader has found something wrong: the end, perhaps

    def __init__(self, file: BinaryIO, limits: PictureLimits, *, is_whole: bool = True) -> None:
        """Read the header; raises as ``decode``. ``is_whole``: whether all of the file is there."""
        self._file, self._limits = file, limits
        try:
            container = read_container(PictureSource(file, is_complete=is_whole))
            if container is None:
                raise UnknownKindError
            if 0 in container.size:
                raise ContainerError("no pixels")
            self._container = container
            #: What the picture takes in all.
            self._scale, self.needed_bytes = _fitted(container, limits)
        except _OURS:
            raise
        except Exception as exc:
            raise _refusal(exc) from exc

    def decode(self) -> Photograph:
        """Return the picture, once; raises as the function."""
        container = self._container
        size = container.size[::-1] if container.orientation in _LYING else container.size
        decode_pixels = _decoder()
        try:
            rgb = decode_pixels(self._file, container, self._scale)
        except Exception as exc:
            raise _refusal(exc) from exc
        self._file.close()  # the pixels may be kept with what knows it
        return Photograph(rgb, size)


def _decoder() -> Callable[[BinaryIO, Container, int], "Image"]:
    """Return what decodes; the first call imports Pillow.

    Raises:
        MemoryError: the system has no memory for its libraries.
    """
    try:
        from server.requests.decoding import decode_pixels
    except ImportError as exc:
        raise MemoryError(f"Pillow cannot be loaded: {exc}") from exc
    return decode_pixels


def _refusal(exc: Exception) -> InvalidRequestError:
    """Return what a client is told of ``exc``: decoders raise whatever their parsing stumbles over."""
    if isinstance(exc, UnknownKindError):
        return InvalidRequestError("not an image that can be read")
    if isinstance(exc, ContainerError) and not isinstance(exc, EndError):
        return InvalidRequestError(f"the image cannot be read: {exc}")
    return InvalidRequestError(f"the image is damaged: {str(exc) or type(exc).__name__}")
