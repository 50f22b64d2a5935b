"""Who last wrote bytes of a manifest's values, which may lie in each other and be written over."""

from dataclasses import dataclass

from models.packs.manifest import Manifest


@dataclass(frozen=True, slots=True)
class Place:
    """Bytes [start, end) of value ``root``, which lies in no other."""

    root: int
    start: int
    end: int


class Writers:
    """Remembers which layer wrote what, in the order in which they are told."""

    def __init__(self, manifest: Manifest) -> None:
        self._values = manifest.values
        self._written: dict[int, list[tuple[Place, int]]] = {}

    def place(self, value: int, offset: int = 0, n_bytes: int | None = None) -> Place:
        """Return where bytes of ``value`` lie, from ``offset`` on, all where ``n_bytes`` is None."""
        length = max(self._values[value].n_bytes - offset, 1) if n_bytes is None else n_bytes
        while (parent := self._values[value].parent) is not None:
            offset += self._values[value].offset
            value = parent
        return Place(value, offset, offset + length)

    def write(self, place: Place, layer: int) -> None:
        self._written.setdefault(place.root, []).append((place, layer))

    def read(self, place: Place) -> list[int]:
        """Return the layers that last wrote some of these bytes, each once, the first layer first."""
        found: set[int] = set()
        wanted = [(place.start, place.end)]
        for written, layer in reversed(self._written.get(place.root, [])):
            left: list[tuple[int, int]] = []
            for start, end in wanted:
                if written.start < end and start < written.end:
                    found.add(layer)
                    left += [(start, written.start)] * (start < written.start)
                    left += [(written.end, end)] * (written.end < end)
                else:
                    left.append((start, end))
            wanted = left
        return sorted(found)
