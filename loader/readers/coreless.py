"""A reader that takes no core, as a disk with DMA; after some sweeps it brings nothing."""

from collections import Counter

from loader.readers.reader import Reader

#: Sweeps that find the bytes they ask for: one that checks them, and what it reads ahead for the next.
CHECKED = 2


class CorelessReader(Reader):
    """Brings what lies at an offset ``brings`` times, and from then on leaves what is in memory.

    That takes no core. Results mean nothing then, and kernels take as long as ever: what is left are
    weights, of another layer.
    """

    def __init__(self, reader: Reader, brings: int = CHECKED) -> None:
        self._reader = reader
        self._brings = brings
        self.kind, self.name, self.alignment = reader.kind, reader.name, reader.alignment
        self._brought: Counter[int] = Counter()

    def read_into(self, offset: int, target: memoryview) -> None:
        self._brought[offset] += 1
        if self._brought[offset] <= self._brings:
            self._reader.read_into(offset, target)

    def check(self) -> None:
        self._reader.check()

    def close(self) -> None:
        self._reader.close()
