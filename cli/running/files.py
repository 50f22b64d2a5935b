"""The files that ``layerstream run`` reads and writes: pictures and tensors."""

import zlib
from pathlib import Path
from typing import IO, Any, BinaryIO
from zipfile import BadZipFile, ZipFile

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from models.packs.pack import Pack
from models.whole_files import users_file
from pipeline.execution.errors import InputError
from pipeline.execution.given import Arrays, Tensors
from server.errors import InvalidRequestError
from server.requests.pictures import PictureLimits, decode

# The user's own file, not a stranger's upload: the limit is where Pillow stops, so that none is shrunk.
_LIMITS = PictureLimits(max_pixels=178_956_970, max_bytes=1 << 40)
# Of a tensor that is written, so much is in memory twice.
_PART_BYTES = 256 << 10


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
    """Return what the model is given: ``picture`` as its tensor, the file ``tensors``, or nothing.

    Raises:
        InputError: the file is none of tensors, the pack does not say how an image becomes one, or there is
            a tensor without a name for a model that has no inputs.
    """
    if tensors is not None:
        loaded = _load(tensors)
        return {_only_name(pack, tensors): loaded} if isinstance(loaded, np.ndarray) else loaded
    if picture is None:
        return {}
    if pack.manifest.preprocess is None:
        raise InputError(f"{pack.folder}: compiled without --preprocess: give --input X.npy")
    return {pack.manifest.inputs[0].name: pack.manifest.preprocess.tensor(picture)}


def _only_name(pack: Pack, path: Path) -> str:
    """Return the input that the tensor in ``path``, which has no name, is for: the first."""
    if not pack.manifest.inputs:
        raise InputError(f"{path}: the model has no inputs")
    return pack.manifest.inputs[0].name


def _load(path: Path) -> "NDArray[Any] | dict[str, NDArray[Any]]":
    try:
        with path.open("rb") as file:
            loaded = np.load(file, allow_pickle=False)
            return loaded if isinstance(loaded, np.ndarray) else dict(loaded)
    except OSError as exc:
        raise InputError(f"{path}: {exc.strerror or exc}") from exc
    except (ValueError, EOFError, BadZipFile, zlib.error) as exc:
        # NumPy takes whatever it does not know for objects, and gives advice on an option of its own.
        why = "it holds Python objects, or is another file" if "pickle" in str(exc) else str(exc)
        raise InputError(f"{path}: no tensors in a .npy or .npz file: {why}") from exc


def check_output(pack: Pack, path: Path) -> None:
    """Refuse, before the model runs, a file that cannot hold its outputs."""
    count = len(pack.manifest.outputs)
    if path.suffix != ".npz" and count != 1:
        raise InputError(f"{path}: the model has {count} outputs; write them to .npz")


def save_outputs(path: Path, outputs: Arrays) -> None:
    """Write all ``outputs`` to .npz, or the only one; of numbers, a part at a time is in memory twice.

    Raises:
        InputError: it cannot be written.
    """
    # Arrays of objects would be pickled, and loading a pickle is not safe.
    outputs = {
        name: array.astype(str) if array.dtype.kind == "O" else array
        for name, array in outputs.items()
    }
    try:
        with users_file(path) as file:  # so that NumPy puts no .npy behind the name
            if path.suffix == ".npz":
                _write_archive(file, outputs)
            else:
                _write_array(file, next(iter(outputs.values())))
    except OSError as exc:
        raise InputError(f"{path}: {exc.strerror or exc}") from exc


def _write_archive(file: BinaryIO, outputs: Arrays) -> None:
    """Write as numpy.savez, whose own parameters cannot be names of arrays."""
    with ZipFile(file, "w") as archive:
        for name, array in outputs.items():
            with archive.open(f"{name}.npy", "w", force_zip64=True) as member:
                _write_array(member, array)


def _write_array(file: IO[bytes], array: NDArray[Any]) -> None:
    """Write ``array`` as numpy.save does, which takes up to 16 MiB for it; here it is a part."""
    np.lib.format.write_array_header_1_0(file, np.lib.format.header_data_from_array_1_0(array))
    flat = array.reshape(-1, order="A")
    step = max(_PART_BYTES // max(array.itemsize, 1), 1)
    for first in range(0, flat.size, step):
        file.write(flat[first : first + step].tobytes())
