"""MODELS.toml and NODES.toml: what is to be placed, and on what, each fault with file, line and key."""

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cli.placement.problem import FleetNode, Model
from models.errors import ModelError, printable
from models.sizes import parse_size
from models.toml_files import TomlFile, read_toml
from server.faults import FAILURES

_MOST_NODES = 1_000_000
_MOST = 1e18
_MODEL_KEYS = frozenset(
    ("name", "pack", "memory", "delay", "read", "requests", "replicas", "labels")
)
_NODE_KEYS = frozenset(("name", "count", "memory", "speed", "read", "labels"))


class PlacementFileError(ModelError):
    """A file of models, of nodes or of a placement is not as it should be; the message has its place."""


@dataclass(frozen=True)
class Needs:
    """What one replica takes: bytes, seconds of a request, bytes that it reads for one."""

    need_bytes: int
    seconds: float
    read_bytes: float


#: Says what the pack in a folder needs to answer within so many seconds; None: at its least.
Planned = Callable[[Path, float | None], Needs]


@dataclass(frozen=True)
class _Table:
    """The table of number ``index`` called ``kind`` in a file; what it says is asked for by key."""

    file: TomlFile
    kind: str
    index: int
    values: Mapping[str, Any]

    def fault(self, key: str, why: str) -> PlacementFileError:
        """Return what is said of what is wrong with ``key``."""
        return PlacementFileError(printable(f"{self.file.path}:{self._line(key)}: {key}: {why}"))

    def _line(self, key: str) -> int:
        """Return on which line the table says ``key``; where it does not, its first."""
        head = re.compile(rf"\s*\[\[\s*{self.kind}\s*\]\]")
        lines = self.file.text.splitlines()
        starts = [number for number, line in enumerate(lines, 1) if head.match(line)]
        first = starts[self.index] if self.index < len(starts) else 1
        end = starts[self.index + 1] if self.index + 1 < len(starts) else len(lines) + 1
        gives = re.compile(rf"\s*[\"']?{re.escape(key)}[\"']?\s*=")
        numbers = (number for number in range(first, end) if gives.match(lines[number - 1]))
        return next(numbers, first)

    def text(self, key: str) -> str:
        """Return a name."""
        value = self.values.get(key)
        if not isinstance(value, str) or not value.strip() or not value.isprintable():
            raise self.fault(key, "a name is wanted, as text")
        return value

    def size(self, key: str) -> int:
        """Return a number of bytes, above 0."""
        value = self.values.get(key)
        try:
            n_bytes = int(parse_size(value)) if isinstance(value, str) else value
        except (ValueError, TypeError):
            n_bytes = None
        if not isinstance(n_bytes, int) or isinstance(n_bytes, bool) or not 0 < n_bytes < _MOST:
            raise self.fault(key, f"{_shown(value)} is no size; write 512MiB, or bytes")
        return n_bytes

    def number(self, key: str, default: float, *, least: float = 0.0) -> float:
        """Return a number above ``least``, or ``default``."""
        value = self.values.get(key, default)
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        if not is_number or not (value == default or least < value < _MOST):
            raise self.fault(key, f"{_shown(value)} is no number above {least:g}")
        return float(value)

    def count(self, key: str, most: int) -> int:
        """Return a whole number from 1."""
        value = self.values.get(key, 1)
        if not isinstance(value, int) or isinstance(value, bool) or not 1 <= value <= most:
            raise self.fault(key, f"{_shown(value)} is no whole number from 1 to {most:,}")
        return value

    def labels(self) -> frozenset[str]:
        """Return the labels."""
        value = self.values.get("labels", [])
        if not isinstance(value, list) or not all(isinstance(each, str) for each in value):
            raise self.fault("labels", f"{_shown(value)} is no list of texts")
        return frozenset(value)

    def seconds(self, key: str) -> float | None:
        """Return a time that is written 120ms or 0.5s; None: there is none."""
        value = self.values.get(key)
        if value is None:
            return None
        matched = (
            re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*(ms|s)\s*", value)
            if isinstance(value, str)
            else None
        )
        seconds = float(matched[1]) / (1e3 if matched[2] == "ms" else 1.0) if matched else 0.0
        if not 0 < seconds < _MOST:
            raise self.fault(key, f"{_shown(value)} is no time; write 120ms or 0.5s")
        return seconds


def _shown(value: object) -> str:
    try:
        text = repr(value)
    except ValueError:  # an integer of more digits than Python writes
        return "a number too long to write"
    return text if len(text) <= 60 else f"{text[:60]}..."


def _tables(path: Path, kind: str, keys: frozenset[str]) -> Iterator[_Table]:
    try:
        file = read_toml(path)
    except ValueError as exc:
        raise PlacementFileError(str(exc)) from exc
    tables = file.values.get(kind)
    if (
        not isinstance(tables, list)
        or not tables
        or not all(isinstance(each, dict) for each in tables)
    ):
        raise PlacementFileError(f"{path}: no [[{kind}]] in it")
    other = next((key for key in file.values if key != kind), None)
    if other is not None:
        raise PlacementFileError(
            printable(f"{file.place(other)}: {other}: only [[{kind}]] is known")
        )
    for index, values in enumerate(tables):
        table = _Table(file, kind, index, values)
        if unknown := next((key for key in values if key not in keys), None):
            raise table.fault(unknown, f"not known; a {kind} has {', '.join(sorted(keys))}")
        yield table


def read_models(path: Path, planned: Planned) -> list[Model]:
    """Return the models of the file ``path``; of those that name a pack ``planned`` says what they need.

    Raises:
        PlacementFileError: it cannot be read, or something in it is not as it should be.
    """
    models: dict[str, Model] = {}
    for table in _tables(path, "model", _MODEL_KEYS):
        name = table.text("name")
        if name in models:
            raise table.fault("name", f"{_shown(name)} is another's, too")
        needs = _needs(table, path, planned)
        models[name] = Model(
            name,
            needs.need_bytes,
            table.number("requests", 0.0),
            needs.seconds,
            needs.read_bytes,
            table.count("replicas", _MOST_NODES),
            table.labels(),
        )
        if models[name].requests and not needs.seconds:
            raise table.fault("delay", "missing: how long a request takes, as 120ms")
    return list(models.values())


def _needs(table: _Table, path: Path, planned: Planned) -> Needs:
    """Return what ``table`` says of memory, time and reading, or what a plan of its pack says."""
    delay = table.seconds("delay")
    if "pack" in table.values:
        for key in ("memory", "read"):
            if key in table.values:
                raise table.fault(key, "a pack says it itself")
        folder = path.parent / table.text("pack")
        try:
            return planned(folder, delay)
        except FAILURES as exc:
            raise table.fault("pack", str(exc)) from exc
    read = table.size("read") if "read" in table.values else 0
    return Needs(table.size("memory"), delay or 0.0, float(read))


def read_nodes(path: Path, own_bytes: int, model_bytes: int, busy: float) -> list[FleetNode]:
    """Return the nodes of the file ``path``, of which a share of ``busy`` of time and reading may be used.

    ``own_bytes``: of a node's memory, what a server takes itself, whatever it serves; ``model_bytes``: what
    it takes for itself with one model at least.

    Raises:
        PlacementFileError: as ``read_models``.
    """
    nodes: dict[str, FleetNode] = {}
    for table in _tables(path, "node", _NODE_KEYS):
        name, count = table.text("name"), table.count("count", _MOST_NODES)
        memory = table.size("memory")
        if memory <= own_bytes + model_bytes:
            raise table.fault("memory", f"{memory:,} bytes: a server takes {own_bytes:,} itself")
        speed = table.number("speed", 1.0) * busy
        read = table.size("read") * busy if "read" in table.values else float("inf")
        names = [name] if "count" not in table.values else [f"{name}-{n + 1}" for n in range(count)]
        if len(nodes) + count > _MOST_NODES:
            raise table.fault("count", f"over {_MOST_NODES:,} nodes in all")
        for each in names:
            if each in nodes:
                raise table.fault("name", f"{_shown(each)} is another's, too")
            nodes[each] = FleetNode(each, memory - own_bytes, speed, read, table.labels())
    return list(nodes.values())
