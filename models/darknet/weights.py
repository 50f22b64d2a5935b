"""Weights files of Darknet: a header, then the float32 arrays of all layers in order, little-endian.

The layout is that of ``load_weights_upto`` in Darknet's parser.c.
"""

import struct
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from models.darknet.cfg import DarknetError
from models.darknet.graph import WeightArray
from models.darknet.layers import DarknetLayer, DarknetNetwork

# Versions of Darknet are below 10, above 1000 where matrices are transposed; others are not its files.
_LARGEST_VERSION = (1 << 16) - 1
_VERSION_BYTES = 12


@dataclass(frozen=True)
class _Header:
    """Three int32 of the version of the Darknet that wrote a file, then how many images were seen."""

    major: int
    minor: int
    revision: int

    @property
    def is_sound(self) -> bool:
        versions = (self.major, self.minor, self.revision)
        return min(versions) >= 0 and max(versions) <= _LARGEST_VERSION

    @property
    def n_bytes(self) -> int:
        """Its length: what was seen has 64 bits since version 0.2."""
        recent = self.major * 10 + self.minor >= 2
        return _VERSION_BYTES + (8 if recent and max(self.major, self.minor) < 1000 else 4)

    @property
    def transposed(self) -> bool:
        """Whether matrices of connected layers are stored [inputs, outputs]."""
        return max(self.major, self.minor) > 1000


def _read_header(path: Path) -> tuple[_Header, int]:
    """Return the header of ``path``, and the file's length in bytes.

    Raises:
        DarknetError: the file cannot be read, or does not start as a weights file does.
    """
    try:
        if path.exists() and not path.is_file():
            raise DarknetError(f"{path}: is not a file")
        n_bytes = path.stat().st_size
        with path.open("rb") as file:
            start = file.read(_VERSION_BYTES)
    except OSError as exc:
        raise DarknetError(f"{path}: {exc.strerror or exc}") from exc
    if len(start) < _VERSION_BYTES:
        raise DarknetError(f"{path}: {n_bytes} bytes are too few for a header")
    header = _Header(*struct.unpack("<iii", start))
    if not header.is_sound:
        raise DarknetError(
            f"{path}: header: version {header.major}.{header.minor}.{header.revision} is none of Darknet's"
        )
    if n_bytes < header.n_bytes:
        raise DarknetError(f"{path}: {n_bytes} bytes are too few for a header of {header.n_bytes}")
    return header, n_bytes


def read_weights(path: Path, network: DarknetNetwork) -> dict[str, NDArray[np.float32]]:
    """Map the weights of ``network`` in ``path``; nothing is read before it is used.

    Returns:
        The arrays by name in the file's order, read-only, with the shapes of ``DarknetLayer.arrays`` (a
        matrix that the file holds transposed is a transposed view).

    Raises:
        DarknetError: the file cannot be read, has no sound header, or holds more or fewer numbers
            than ``network`` has weights.
    """
    header, n_bytes = _read_header(path)
    body = n_bytes - header.n_bytes
    if body % 4:
        raise DarknetError(f"{path}: {body} bytes after the header are not a multiple of 4")
    _check_count(path, network, body // 4)
    if not body:
        return {}
    try:
        mapped = np.memmap(path, np.dtype("<f4"), "r", offset=header.n_bytes, shape=(body // 4,))
    except (OSError, ValueError) as exc:  # the latter: the file became shorter
        raise DarknetError(f"{path}: {exc}") from exc
    return dict(_cut(network, header.transposed, np.asarray(mapped)))


def _check_count(path: Path, network: DarknetNetwork, found: int) -> None:
    """Compare the count of numbers with the network's; say which layer a short file ends in."""
    expected = 0
    for layer in network.layers:
        needed = sum(array.size for array in layer.arrays)
        if expected <= found < expected + needed:
            total = sum(array.size for _, array in _arrays(network))
            raise DarknetError(
                f"{path}: expected {total} numbers, found {found}: it ends in layer {layer.index} "
                f"({layer.kind}), {found - expected} of whose {needed} are there"
            )
        expected += needed
    if found > expected:
        raise DarknetError(
            f"{path}: expected {expected} numbers, found {found}: probably weights of another network"
        )


def _arrays(network: DarknetNetwork) -> Iterator[tuple[DarknetLayer, WeightArray]]:
    """Yield every array in the order of the file."""
    for layer in network.layers:
        for array in layer.arrays:
            yield layer, array


def _cut(
    network: DarknetNetwork, transposed: bool, numbers: NDArray[np.float32]
) -> Iterator[tuple[str, NDArray[np.float32]]]:
    start = 0
    for layer, array in _arrays(network):
        part = numbers[start : start + array.size]
        start += part.size
        if transposed and layer.kind == "connected" and len(array.shape) == 2:
            yield array.name, part.reshape(array.shape[::-1]).T
        else:
            yield array.name, part.reshape(array.shape)
