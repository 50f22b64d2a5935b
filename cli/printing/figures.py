"""Numbers as tables show them: the unit is in the head of the column, so that they can be compared."""

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

_NONE = "-"
_SMALL = 0.095


class SizeUnit(NamedTuple):
    """The unit of all sizes of a table, or of a column."""

    name: str
    n_bytes: int

    def head(self, name: str) -> str:
        return f"{name} {self.name}"

    def show(self, size: int | None) -> str:
        """Return ``size`` bytes in this unit."""
        return number(None if size is None else size / self.n_bytes)

    def show_least(self, size: int | None) -> str:
        """Return ``size`` bytes rounded up: a minimum that is enough when someone types it back."""
        return _NONE if size is None else f"{-(-size * 100 // self.n_bytes) / 100:.2f}"


KIB, MIB = SizeUnit("KiB", 1 << 10), SizeUnit("MiB", 1 << 20)


def unit_of(sizes: Iterable[int | None]) -> SizeUnit:
    """Return MiB, and KiB where none of ``sizes`` (bytes) has one."""
    largest = max((size for size in sizes if size is not None), default=0)
    return MIB if largest >= MIB.n_bytes else KIB


def unit_of_rows(rows: Iterable[Mapping[str, Any]], *keys: str) -> SizeUnit:
    """Return the unit for the sizes at ``keys`` of ``rows``."""
    return unit_of(row[key] for row in rows for key in keys)


def number(value: float | None) -> str:
    """Return ``value`` with two decimals, or two digits where it is too small for them."""
    if value is None:
        return _NONE
    return f"{value:.2g}" if 0 < value < _SMALL else f"{value:.2f}"


def percent(value: float | None) -> str:
    """Return ``value``, which is in percent."""
    return _NONE if value is None else f"{value:.1f}"
