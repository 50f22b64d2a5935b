"""The oracle's own reading of Darknet's files; it trusts what it reads."""

import struct

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]
Options = dict[str, str]
Sections = list[tuple[str, Options]]


def parse(text: str) -> Sections:
    """Return kind and options of each section; the first of equal keys counts."""
    sections: Sections = []
    for line in text.lstrip("\ufeff").splitlines():
        bare = "".join(line.split())
        if bare.startswith("["):
            sections.append((bare.strip("[]"), {}))
        elif bare and bare[0] not in "#;":
            key, _, value = bare.partition("=")
            sections[-1][1].setdefault(key, value)
    return sections


class Numbers:
    """The numbers of a weights file, taken one array after the other."""

    def __init__(self, content: bytes) -> None:
        major, minor, _ = struct.unpack_from("<iii", content)
        wide = major * 10 + minor >= 2 and major < 1000 and minor < 1000
        self.transposed = major > 1000 or minor > 1000
        self._left = np.frombuffer(content, "<f4", offset=20 if wide else 16)

    def take(self, *shape: int) -> Array:
        count = int(np.prod(shape))
        part, self._left = self._left[:count], self._left[count:]
        return part.astype(np.float64).reshape(shape)

    @property
    def left(self) -> int:
        return self._left.size
