"""Weights files of Darknet: a header, then the float32 arrays of all layers in order, little-endian.

The layout is that of ``load_weights_upto`` in Darknet's parser.c.
"""

import json
import math
import struct
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated, Self

import numpy as np
import onnx
from google.protobuf.message import DecodeError
from numpy.typing import NDArray
from onnx import numpy_helper
from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from models.darknet.cfg import DarknetError, parse_cfg
from models.darknet.graph import WeightArray
from models.darknet.layers import DarknetLayer, DarknetNetwork
from models.darknet.network import build_network
from models.darknet.skeleton import CFG, HEADER
from models.graphs.file import FileRange, parse_onnx
from models.whole_files import users_file

# The header of a weights file: three int32 of Darknet's version, then how many images were seen.

# Versions of Darknet are below 10, above 1000 where matrices are transposed; others are not its files.
_LARGEST_VERSION = (1 << 16) - 1
_VERSION_BYTES = 12

_Version = Annotated[int, Field(ge=0, le=_LARGEST_VERSION)]


class Header(BaseModel):
    """Version of the Darknet that wrote a file, and how many images the network had ``seen``."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    major: _Version = 0
    minor: _Version = 2
    revision: _Version = 5
    seen: Annotated[int, Field(ge=0)] = 0

    @property
    def seen_format(self) -> str:
        """How ``seen`` is stored: 64 bits since version 0.2."""
        recent = self.major * 10 + self.minor >= 2
        return "<Q" if recent and max(self.major, self.minor) < 1000 else "<I"

    @property
    def transposed(self) -> bool:
        """Whether matrices of connected layers are stored [inputs, outputs]."""
        return max(self.major, self.minor) > 1000

    def to_bytes(self) -> bytes:
        versions = struct.pack("<iii", self.major, self.minor, self.revision)
        return versions + struct.pack(self.seen_format, self.seen)

    @model_validator(mode="after")
    def _seen_fits(self) -> Self:
        if self.seen >= 1 << 8 * struct.calcsize(self.seen_format):
            raise ValueError(f"seen={self.seen} does not fit into its field")
        return self


def read_header(path: Path) -> tuple[Header, int, int]:
    """Return the header of ``path``, its length, and the file's length, both in bytes.

    Raises:
        DarknetError: the file cannot be read, or does not start as a weights file does.
    """
    try:
        if path.exists() and not path.is_file():
            raise DarknetError(f"{path}: is not a file")
        n_bytes = path.stat().st_size
        with path.open("rb") as file:
            start = file.read(_VERSION_BYTES + 8)
    except OSError as exc:
        raise DarknetError(f"{path}: {exc.strerror or exc}") from exc
    if len(start) < _VERSION_BYTES:
        raise DarknetError(f"{path}: {n_bytes} bytes are too few for a header")
    major, minor, revision = struct.unpack("<iii", start[:_VERSION_BYTES])
    try:
        header = Header(major=major, minor=minor, revision=revision)
        end = _VERSION_BYTES + struct.calcsize(header.seen_format)
        if n_bytes < end:
            raise DarknetError(f"{path}: {n_bytes} bytes are too few for a header of {end}")
        (seen,) = struct.unpack(header.seen_format, start[_VERSION_BYTES:end])
        return Header(major=major, minor=minor, revision=revision, seen=seen), end, n_bytes
    except ValidationError as exc:
        raise DarknetError(
            f"{path}: header: version {major}.{minor}.{revision} is none of Darknet's"
        ) from exc


# Weights files, read and written.


def read_weights(
    path: Path, network: DarknetNetwork
) -> tuple[Header, dict[str, NDArray[np.float32]]]:
    """Map the weights of ``network`` in ``path``; nothing is read before it is used.

    Returns:
        The header, and the arrays by name in the file's order, read-only, with the shapes of
        ``DarknetLayer.arrays`` (a matrix that the file holds transposed is a transposed view).

    Raises:
        DarknetError: the file cannot be read, has no sound header, or holds more or fewer numbers
            than ``network`` has weights.
    """
    header, start, n_bytes = read_header(path)
    body = n_bytes - start
    if body % 4:
        raise DarknetError(f"{path}: {body} bytes after the header are not a multiple of 4")
    _check_count(path, network, body // 4)
    if not body:
        return header, {}
    try:
        mapped = np.memmap(path, np.dtype("<f4"), "r", offset=start, shape=(body // 4,))
    except (OSError, ValueError) as exc:  # the latter: the file became shorter
        raise DarknetError(f"{path}: {exc}") from exc
    return header, dict(_cut(network, header, np.asarray(mapped)))


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


def _is_transposed(header: Header, layer: DarknetLayer, array: WeightArray) -> bool:
    return header.transposed and layer.kind == "connected" and len(array.shape) == 2


def _cut(
    network: DarknetNetwork, header: Header, numbers: NDArray[np.float32]
) -> Iterator[tuple[str, NDArray[np.float32]]]:
    start = 0
    for layer, array in _arrays(network):
        part = numbers[start : start + array.size]
        start += part.size
        if _is_transposed(header, layer, array):
            yield array.name, part.reshape(array.shape[::-1]).T
        else:
            yield array.name, part.reshape(array.shape)


def write_weights(
    path: Path, network: DarknetNetwork, header: Header, weights: Mapping[str, NDArray[np.float32]]
) -> None:
    """Write ``weights`` (float32, by name, in the shapes of ``DarknetLayer.arrays``) to ``path``.

    One array is taken from the mapping at a time, so it may make them when asked.

    Raises:
        DarknetError: the file cannot be written; then ``path`` is what it was before.
    """
    try:
        with users_file(path) as file:
            file.write(header.to_bytes())
            for layer, array in _arrays(network):
                values = weights[array.name]
                assert values.shape == array.shape, f"{array.name}: {values.shape}"
                stored = values.T if _is_transposed(header, layer, array) else values
                file.write(np.ascontiguousarray(stored, "<f4").reshape(-1).view(np.uint8).data)
    except OSError as exc:
        raise DarknetError(f"{path}: {exc.strerror or exc}") from exc


def export_weights(onnx_path: Path, out_path: Path) -> None:
    """Write the weights of a network that came from Darknet in Darknet's format again.

    Args:
        onnx_path: what the importer wrote: names of the weights and metadata say where they belong.
        out_path: the weights file; the header is that of the file the weights came from, if any.

    Raises:
        DarknetError: ``onnx_path`` is not such a model, lacks a weight or has it in another shape,
            or a file cannot be read or written.
    """
    if out_path.resolve() == onnx_path.resolve():
        raise DarknetError(f"{out_path}: would replace what is exported")
    model, ranges = _load(onnx_path)
    network, header = _origin(onnx_path, model)
    stored = _Stored(onnx_path, model, ranges)
    stored.check(network)
    write_weights(out_path, network, header, stored)


def _load(path: Path) -> tuple[onnx.ModelProto, dict[int, FileRange]]:
    try:
        return parse_onnx(path)
    except OSError as exc:
        raise DarknetError(f"{path}: {exc.strerror or exc}") from exc
    except (DecodeError, ValueError) as exc:
        raise DarknetError(f"{path}: not an ONNX model ({exc})") from exc


def _origin(path: Path, model: onnx.ModelProto) -> tuple[DarknetNetwork, Header]:
    """Return the network and the header that the metadata of ``model`` describe."""
    metadata = {item.key: item.value for item in model.metadata_props}
    if CFG not in metadata:
        raise DarknetError(f"{path}: does not come from Darknet (no {CFG!r} in its metadata)")
    try:
        text = json.loads(metadata[CFG])
        header = Header.model_validate_json(metadata.get(HEADER, "{}"))
    except ValueError as exc:
        raise DarknetError(f"{path}: metadata: {' '.join(str(exc).split())}") from exc
    if not isinstance(text, str):
        raise DarknetError(f"{path}: metadata {CFG!r} is not a text")
    where = f"{path}: {CFG}"
    return build_network(parse_cfg(text, where), where), header


class _Stored(Mapping[str, NDArray[np.float32]]):
    """The weights of a model, each loaded when it is asked for."""

    def __init__(self, path: Path, model: onnx.ModelProto, ranges: Mapping[int, FileRange]) -> None:
        self._path = path
        self._tensors = {tensor.name: tensor for tensor in model.graph.initializer}
        names = [tensor.name for tensor in model.graph.initializer]
        self._ranges = {names[index]: held for index, held in ranges.items()}

    def check(self, network: DarknetNetwork) -> None:
        """Raise DarknetError unless every array of ``network`` is there with its shape."""
        for _, array in _arrays(network):
            tensor = self._tensors.get(array.name)
            if tensor is None:
                raise DarknetError(f"{self._path}: weight {array.name!r} is missing")
            if tensor.data_type != onnx.TensorProto.FLOAT or tuple(tensor.dims) != array.shape:
                raise DarknetError(
                    f"{self._path}: weight {array.name!r} is not float32{list(array.shape)}"
                )

    def __getitem__(self, name: str) -> NDArray[np.float32]:
        tensor = self._tensors[name]
        try:
            if (held := self._ranges.get(name)) is not None:
                shape = tuple(tensor.dims)
                if held.length != 4 * math.prod(shape):
                    raise ValueError(f"holds {held.length} bytes")
                return np.memmap(held.path, "<f4", "r", held.offset, shape)
            values: NDArray[np.float32] = numpy_helper.to_array(tensor, str(self._path.parent))
        except (OSError, ValueError, TypeError, onnx.checker.ValidationError) as exc:
            reason = " ".join(str(exc).split())
            raise DarknetError(f"{self._path}: weight {name!r}: {reason}") from exc
        return values

    def __iter__(self) -> Iterator[str]:
        return iter(self._tensors)

    def __len__(self) -> int:
        return len(self._tensors)
