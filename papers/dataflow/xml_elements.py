"""XML as elements that know their line, read without trust: no DOCTYPE, so no entities; bounded sizes."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from xml.parsers import expat

from papers.dataflow.csdf import DataflowError
from papers.dataflow.naming import shortened

MOST_BYTES = 64 << 20
_MOST_ELEMENTS = 500_000
_MOST_DEPTH = 32


@dataclass(slots=True)
class Element:
    """An element of the file ``path``; texts are not kept."""

    path: Path
    line: int
    tag: str
    attributes: dict[str, str]
    children: list["Element"] = field(default_factory=list)

    def error(self, reason: str) -> DataflowError:
        """Return the error that this element is wrong."""
        return DataflowError(f"{self.path}: line {self.line}: <{self.tag[:40]}>: {reason}")

    def all(self, tag: str) -> Iterator["Element"]:
        """Yield the children called ``tag``."""
        return (child for child in self.children if child.tag == tag)

    def one(self, tag: str) -> "Element":
        """Return the child called ``tag``.

        Raises:
            DataflowError: there is none, or another.
        """
        found = list(self.all(tag))
        if len(found) != 1:
            raise self.error(f"{len(found) or 'no'} <{tag}> in it, expected one")
        return found[0]

    def text(self, name: str) -> str:
        """Return the attribute ``name``, which is not empty.

        Raises:
            DataflowError: it is missing.
        """
        value = self.attributes.get(name, "")
        if not value:
            raise self.error(f"no attribute {name!r}")
        return value

    def number(self, name: str, default: int) -> int:
        """Return the attribute ``name`` as a number of 0 or more.

        Raises:
            DataflowError: it is none.
        """
        return self.as_number(name, self.attributes.get(name, str(default)))

    def as_number(self, name: str, text: str) -> int:
        """Return ``text``, a part of the attribute ``name``, as a number of 0 or more.

        Raises:
            DataflowError: it is none.
        """
        stripped = text.strip()
        if not (stripped.isascii() and stripped.isdecimal()) or len(stripped) > 15:
            raise self.error(
                f"{name}: {shortened(text)}, expected a number of 0 or more, of up to 15 digits"
            )
        return int(stripped)


class _Builder:
    def __init__(self, path: Path) -> None:
        self.root: Element | None = None
        self._path = path
        self._open: list[Element] = []
        self._count = 0
        self.parser = expat.ParserCreate()
        self.parser.StartElementHandler = self._start
        self.parser.EndElementHandler = self._end
        self.parser.StartDoctypeDeclHandler = self._doctype

    def _start(self, tag: str, attributes: dict[str, str]) -> None:
        line = self.parser.CurrentLineNumber
        element = Element(self._path, line, tag, attributes)
        self._count += 1
        if self._count > _MOST_ELEMENTS or len(self._open) >= _MOST_DEPTH:
            raise element.error(
                f"expected at most {_MOST_ELEMENTS:,} elements, {_MOST_DEPTH} in each other"
            )
        if self._open:
            self._open[-1].children.append(element)
        else:
            self.root = element
        self._open.append(element)

    def _end(self, _tag: str) -> None:
        self._open.pop()

    def _doctype(self, *_: object) -> None:
        line = self.parser.CurrentLineNumber
        raise DataflowError(f"{self._path}: line {line}: a DOCTYPE, expected none")


def read_elements(path: Path) -> Element:
    """Return the root element of an XML file.

    Raises:
        DataflowError: the file cannot be read, is too large, is no XML, or declares a DOCTYPE.
    """
    try:
        with path.open("rb") as file:
            data = file.read(MOST_BYTES + 1)
    except OSError as exc:
        raise DataflowError(f"{path}: {exc.strerror or exc}") from exc
    if len(data) > MOST_BYTES:
        raise DataflowError(f"{path}: more than {MOST_BYTES >> 20} MiB")
    builder = _Builder(path)
    try:
        builder.parser.Parse(data, True)
    except (expat.ExpatError, ValueError, LookupError) as exc:
        raise DataflowError(f"{path}: no XML: {str(exc)[:200]}") from exc
    assert builder.root is not None  # expat refuses a document without one
    return builder.root
