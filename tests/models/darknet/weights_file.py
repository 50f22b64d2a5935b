"""Weights files as Darknet writes them, of any version."""

import struct
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from models.darknet.layers import DarknetNetwork


class Header(NamedTuple):
    """The version of Darknet, and how many images the network has seen: ``seen`` of a format of struct."""

    major: int = 0
    minor: int = 2
    revision: int = 5
    seen: int = 0
    seen_format: str = "<Q"

    @property
    def content(self) -> bytes:
        versions = struct.pack("<iii", self.major, self.minor, self.revision)
        return versions + struct.pack(self.seen_format, self.seen)


OLD = Header(0, 1, 0, seen=7, seen_format="<I")
NEW = Header(seen=1 << 40)
#: Matrices are [inputs, outputs].
TRANSPOSED = Header(1001, 1, 0, seen=7, seen_format="<I")


def write_weights(
    path: Path, network: DarknetNetwork, header: Header, weights: Mapping[str, NDArray[Any]]
) -> None:
    """Write ``weights``, by name, in the order and the shapes of the layers of ``network``."""
    parts = [header.content]
    for layer in network.layers:
        for array in layer.arrays:
            values = weights[array.name]
            assert values.shape == array.shape, array.name
            turned = header.major > 1000 and layer.kind == "connected" and values.ndim == 2
            parts.append(np.ascontiguousarray(values.T if turned else values, "<f4").tobytes())
    path.write_bytes(b"".join(parts))
