"""The options of one section, as checked numbers; every error names the section and its line."""

import math
import re
from dataclasses import dataclass
from typing import NoReturn

from models.darknet.cfg.section import Section
from models.darknet.cfg.tables import USED, canonical, is_ignored, neutral
from models.darknet.errors import DarknetError, short

# Darknet's numbers are C's int.
_MOST = (1 << 31) - 1

_INTEGER = re.compile(r"[+-]?[0-9]{1,10}")
_NUMBER = re.compile(r"[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?")


@dataclass(frozen=True)
class SectionOptions:
    """``section`` is number ``index`` after [net], -1 is [net] itself; errors start with ``where``."""

    section: Section
    where: str
    index: int

    @property
    def kind(self) -> str:
        return canonical(self.section.kind)

    def fail(self, message: str, option: str | None = None) -> NoReturn:
        """Raise the error about this section, at the line of ``option`` if that is given."""
        line = self.section.option_lines.get(option or "", self.section.line)
        number = f"layer {self.index} " if self.index >= 0 else ""
        at = f"line {line}: " if line else ""
        raise DarknetError(f"{self.where}: {at}{number}[{short(self.section.kind)}]: {message}")

    def check_names(self) -> None:
        """Refuse sections and options that Darknet does not have, or that are not supported.

        Raises:
            DarknetError: the section or an option of it.
        """
        if self.kind not in USED:
            self.fail("sections of this kind are not supported")
        for option, value in self.section.options.items():
            only = neutral(self.kind, option)
            if only is not None:
                if value not in (only, f"{only}.0"):
                    self.fail(f"{option}={short(value)} is not supported, only {only} is", option)
            elif option not in USED[self.kind] and not is_ignored(self.kind, option):
                self.fail(f"unknown option {short(option)}", option)

    def has(self, option: str) -> bool:
        return option in self.section.options

    def text(self, option: str, default: str | None = None) -> str:
        """Return the text of ``option``; without ``default`` it must be there."""
        value = self.section.options.get(option, default)
        if value is None:
            self.fail(f"option {option} is missing")
        return value

    def choice(self, option: str, default: str, values: tuple[str, ...]) -> str:
        """Return one of ``values``."""
        value = self.text(option, default)
        if value not in values:
            self.fail(f"{option}={short(value)} is none of {', '.join(values)}", option)
        return value

    def integer(
        self, option: str, default: int | None = None, least: int = 1, most: int = _MOST
    ) -> int:
        """Return an integer from ``least`` to ``most``."""
        text = self.text(option, None if default is None else str(default))
        value = self._integer(option, text)
        if not least <= value <= most:
            self.fail(f"{option}={value} is not from {least} to {most}", option)
        return value

    def flag(self, option: str) -> bool:
        """Return whether an integer, 0 by default, is not 0."""
        return self.integer(option, 0, least=-_MOST) != 0

    def number(self, option: str, default: float) -> float:
        """Return a positive number."""
        text = self.section.options.get(option)
        value = default if text is None else self._number(option, text)
        if value <= 0:
            self.fail(f"{option}={short(text or '')} is not above 0", option)
        return value

    def integers(self, option: str) -> tuple[int, ...]:
        """Return a list of integers, separated by commas."""
        return tuple(self._integer(option, part) for part in self.text(option).split(","))

    def numbers(self, option: str) -> tuple[float, ...]:
        """Return a list of numbers, separated by commas."""
        return tuple(self._number(option, part) for part in self.text(option).split(","))

    def _integer(self, option: str, text: str) -> int:
        text = text.strip()
        if len(text) > 40 or not _INTEGER.fullmatch(text) or abs(int(text)) > _MOST:
            self.fail(f"{option}: {short(text)!r} is not an integer", option)
        return int(text)

    def _number(self, option: str, text: str) -> float:
        text = text.strip()
        if len(text) > 40 or not _NUMBER.fullmatch(text) or not math.isfinite(float(text)):
            self.fail(f"{option}: {short(text)!r} is not a number", option)
        return float(text)
