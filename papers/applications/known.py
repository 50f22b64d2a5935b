"""What a long search counted before, in bounded memory."""

from collections.abc import Hashable

_MOST_NUMBERS = 2_000_000
# A key, a tuple and their place in a table take as much as so many numbers more.
_BESIDE = 32


class CountCache:
    """Tuples of numbers by what they depend on: about 20 MB at most, then all are counted anew."""

    def __init__(self, most_numbers: int = _MOST_NUMBERS) -> None:
        self._most = most_numbers
        self._numbers = 0
        self._found: dict[Hashable, tuple[int, ...]] = {}

    def get(self, key: Hashable) -> tuple[int, ...] | None:
        """Return what is known; None: nothing."""
        return self._found.get(key)

    def keep(self, key: Hashable, numbers: tuple[int, ...]) -> None:
        """Remember ``numbers``; where there is no room, all others are forgotten."""
        self._numbers += len(numbers) + _BESIDE
        if self._numbers > self._most:
            self._found.clear()
            self._numbers = len(numbers) + _BESIDE
        self._found[key] = numbers
