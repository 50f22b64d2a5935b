"""Records as JSON, to send them between two processes of the server: trees of the program's own data.

Pickle would run whatever the sender names. Here a document names classes of records alone, dataclasses
and named tuples of our packages, and reading it fills their fields and calls nothing of them. What two
records share is written once, and is shared again after reading.
"""

import base64
import dataclasses
import importlib
from collections.abc import Callable, Mapping
from pathlib import Path, PurePath
from typing import Any

_PACKAGES = frozenset({"models", "loader", "pipeline", "server"})
_SCALARS = (bool, int, float, str, type(None))


class RecordError(Exception):
    """A value is no record, or a document is none of records."""


def to_json(value: Any) -> dict[str, Any]:
    """Return ``value`` as a document for json.dumps: records, scalars, and collections of them.

    Raises:
        RecordError: it has something else in it.
    """
    writer = _Writer()
    root = writer.reference(value)
    return {"root": root, "nodes": writer.nodes}


def from_json(document: Any) -> Any:
    """Return what ``to_json`` was given.

    Raises:
        RecordError: it is no such document.
    """
    try:
        nodes: list[Any] = []
        for kind, content in document["nodes"]:
            nodes.append(_READ[kind](content, nodes))
        return _value(document["root"], nodes)
    except (AttributeError, ImportError, LookupError, TypeError, ValueError) as exc:
        raise RecordError(f"not a document of records: {type(exc).__name__}: {exc}") from exc


class _Writer:
    """Writes values as ``nodes``, each [kind, content], those that it refers to before it.

    A reference is a scalar itself, or [the number of a node].
    """

    def __init__(self) -> None:
        self.nodes: list[tuple[str, Any]] = []
        #: By identity; values are kept, so that no other one gets the identity of one.
        self._written: dict[int, tuple[int, Any]] = {}

    def reference(self, value: Any) -> Any:
        if type(value) in _SCALARS:
            return value
        if isinstance(value, float):  # numpy's, too
            return float(value)
        if id(value) not in self._written:
            node = self._node(value)
            self._written[id(value)] = len(self.nodes), value
            self.nodes.append(node)
        return [self._written[id(value)][0]]

    def _node(self, value: Any) -> tuple[str, Any]:
        if type(value) in _PLAIN:
            return _PLAIN[type(value)], [self.reference(item) for item in value]
        if isinstance(value, Mapping):
            return "dict", [[self.reference(key), self.reference(value[key])] for key in value]
        if isinstance(value, range):
            return "range", [value.start, value.stop, value.step]
        if isinstance(value, bytes):
            return "bytes", base64.b64encode(value).decode()
        if isinstance(value, PurePath):
            return "path", str(value)
        name = _name(type(value))
        fields = {field: self.reference(getattr(value, field)) for field in _fields(type(value))}
        return "record", [name, fields]


_PLAIN: dict[type, str] = {tuple: "tuple", list: "list", frozenset: "frozenset", set: "set"}


def _value(reference: Any, nodes: list[Any]) -> Any:
    return nodes[reference[0]] if isinstance(reference, list) else reference


def _collection(make: Callable[[Any], Any]) -> Callable[[Any, list[Any]], Any]:
    return lambda content, nodes: make(_value(item, nodes) for item in content)


def _record(content: Any, nodes: list[Any]) -> Any:
    name, written = content
    kind = _class(name)
    values = {field: _value(written[field], nodes) for field in _fields(kind)}
    if issubclass(kind, tuple):
        return kind(**values)
    record = object.__new__(kind)
    for field in dataclasses.fields(kind):
        if not field.init and field.default_factory is not dataclasses.MISSING:
            object.__setattr__(record, field.name, field.default_factory())
    for field_name, value in values.items():
        object.__setattr__(record, field_name, value)
    return record


_READ: dict[str, Callable[[Any, list[Any]], Any]] = {
    **{name: _collection(kind) for kind, name in _PLAIN.items()},
    "dict": lambda content, nodes: {
        _value(key, nodes): _value(value, nodes) for key, value in content
    },
    "range": lambda content, _: range(*content),
    "bytes": lambda content, _: base64.b64decode(content),
    "path": lambda content, _: Path(content),
    "record": _record,
}


def _name(kind: type) -> str:
    _fields(kind)
    return f"{kind.__module__}:{kind.__qualname__}"


def _class(name: str) -> type[Any]:
    module, _, qualified = name.partition(":")
    _check_package(module, name)
    result: Any = importlib.import_module(module)
    for attribute in qualified.split("."):
        result = getattr(result, attribute)
    if not isinstance(result, type):
        raise RecordError(f"{name}: not a class of records")
    return result


def _fields(kind: type[Any]) -> list[str]:
    """Return the names of the fields of a class of records; RecordError where it is none of ours."""
    _check_package(kind.__module__, kind.__qualname__)
    if dataclasses.is_dataclass(kind):
        return [field.name for field in dataclasses.fields(kind) if field.init]
    if issubclass(kind, tuple) and hasattr(kind, "_fields"):
        return list(kind._fields)
    raise RecordError(f"{kind.__module__}.{kind.__qualname__}: not a class of records")


def _check_package(module: str, name: str) -> None:
    if module.partition(".")[0] not in _PACKAGES:
        raise RecordError(f"{name}: not a class of ours")
