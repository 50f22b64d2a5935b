"""Fields of a configuration by name, with their types; what nobody asks for is ignored by name."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

from server.repository.layout.text_format import Field, Message, TextFormatError

T = TypeVar("T")


class Fields:
    """The fields of one message at ``path``; those that nobody asks for go to ``ignored`` at the end."""

    def __init__(self, message: Message, path: str, ignored: dict[str, int]) -> None:
        self._message = message
        self._path = path
        self._ignored = ignored
        self._known: set[str] = set()

    def all(self, name: str) -> list[Field]:
        """Return the fields called ``name``."""
        self._known.add(name)
        return [each for each in self._message if each.name == name]

    def one(self, name: str, read: "Callable[[At], T]") -> T | None:
        """Return what ``read`` makes of the field ``name``; None where there is none."""
        found = self.all(name)
        if len(found) > 1:
            raise TextFormatError(found[1].line, f"{self._path}{name}: given twice")
        return read(self._at(found[0])) if found else None

    def each(self, name: str, read: "Callable[[At], T]") -> list[T]:
        """Return what ``read`` makes of every field ``name``."""
        return [read(self._at(found)) for found in self.all(name)]

    def line(self, name: str) -> int:
        """Return where the first field ``name`` stands; 1 where there is none."""
        return next((each.line for each in self._message if each.name == name), 1)

    def ignore_rest(self) -> None:
        """Note what nobody has asked for."""
        for each in self._message:
            if each.name not in self._known:
                self._ignored.setdefault(f"{self._path}{each.name}", each.line)

    def _at(self, found: Field) -> "At":
        return At(found, f"{self._path}{found.name}", self._ignored)


@dataclass(frozen=True)
class At:
    """A field, the path to it, and where what is ignored in it goes."""

    field: Field
    path: str
    ignored: dict[str, int]

    def fault(self, message: str) -> TextFormatError:
        """Return the error that ``message`` is wrong with this field."""
        return TextFormatError(self.field.line, f"{self.path}: {message}")

    def fields(self) -> Fields:
        """Return the fields inside; TextFormatError where it has none."""
        if not isinstance(self.field.value, tuple):
            raise self.fault("expected fields in { }")
        return Fields(self.field.value, f"{self.path}.", self.ignored)


def whole(least: int, most: int) -> Callable[[At], int]:
    """Return a reader of whole numbers from ``least`` to ``most``."""

    def read(at: At) -> int:
        value = at.field.value
        if not isinstance(value, int) or not least <= value <= most:
            raise at.fault(f"expected a whole number from {least} to {most}")
        return value

    return read


def text(at: At) -> str:
    """Return the text of ``at``; TextFormatError where it is none."""
    if not isinstance(at.field.value, bytes):
        raise at.fault("expected a text in quotes")
    try:
        return at.field.value.decode()
    except UnicodeDecodeError:
        raise at.fault("not UTF-8") from None
