"""The files that ``layerstream run`` reads and writes: pictures and tensors."""

import zlib
from pathlib import Path
from typing import Any, BinaryIO
from zipfile import BadZipFile, ZipFile

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from models.packs.pack import Pack
from models.whole_files import users_file
from pipeline.execution.errors import InputError
from pipeline.execution.given import Tensors
from server.errors import InvalidRequestError
from server.requests.pictures import PictureLimits, decode

# The user's own file, not a stranger's upload: the limit is where Pillow stops, so that none is shrunk.
_LIMITS = PictureLimits(max_pixels=178_956_970, max_bytes=1 << 40)


def open_picture(path: Path) -> Image.Image:
    """Return the image in the file.

    Raises:
        InputError: there is none, or it is none.
    """
    if not path.is_file():
        raise InputError(f"{path}: {'not a file' if path.exists() else 'no such file'}")
    try:
        return decode(path, _LIMITS).image
    except InvalidRequestError as exc:
        raise InputError(f"{path}: {exc}") from exc


def read_inputs(pack: Pack, picture: Image.Image | None, tensors: Path | None) -> Tensors:
    """Return what the model is given: ``picture`` as its tensor, or the file ``tensors``.

    Raises:
        InputError: the file is none of tensors, or the pack does not say how an image becomes one.
    """
    name = pack.manifest.inputs[0].name
    if tensors is not None:
        return _load(tensors, name)
    if pack.manifest.preprocess is None:
        raise InputError(f"{pack.folder}: compiled without --preprocess: give --input X.npy")
    assert picture is not None
    return {name: pack.manifest.preprocess.tensor(picture)}


def _load(path: Path, name: str) -> dict[str, NDArray[Any]]:
    try:
        with path.open("rb") as file:
            loaded = np.load(file, allow_pickle=False)
            return {name: loaded} if isinstance(loaded, np.ndarray) else dict(loaded)
    except OSError as exc:
        raise InputError(f"{path}: {exc.strerror or exc}") from exc
    except (ValueError, EOFError, BadZipFile, zlib.error) as exc:
        raise InputError(f"{path}: not a .npy or .npz file: {exc}") from exc


def check_output(pack: Pack, path: Path) -> None:
    """Refuse, before the model runs, a file that cannot hold its outputs."""
    count = len(pack.manifest.outputs)
    if path.suffix != ".npz" and count != 1:
        raise InputError(f"{path}: the model has {count} outputs; write them to .npz")


def save_outputs(path: Path, outputs: dict[str, NDArray[Any]]) -> None:
    """Write all ``outputs`` to .npz, or the only one.

    Raises:
        InputError: it cannot be written.
    """
    # Objects would be pickled, which no one should have to load.
    outputs = {
        name: array.astype(str) if array.dtype.kind == "O" else array
        for name, array in outputs.items()
    }
    try:
        with users_file(path) as file:  # so that NumPy puts no .npy behind the name
            if path.suffix == ".npz":
                _write_archive(file, outputs)
            else:
                np.save(file, next(iter(outputs.values())), allow_pickle=False)
    except OSError as exc:
        raise InputError(f"{path}: {exc.strerror or exc}") from exc


def _write_archive(file: BinaryIO, outputs: dict[str, NDArray[Any]]) -> None:
    """Write as numpy.savez, whose own parameters cannot be names of arrays."""
    with ZipFile(file, "w") as archive:
        for name, array in outputs.items():
            with archive.open(f"{name}.npy", "w", force_zip64=True) as member:
                np.lib.format.write_array(member, array, allow_pickle=False)
