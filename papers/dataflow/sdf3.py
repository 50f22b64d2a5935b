"""CSDF graphs as SDF3 writes them: XML of type csdf, a rate for each phase, zero rates too.

Read are actors with ports, channels with initial tokens, execution times of the default processor and token
sizes; what else SDF3 may say is passed over. ``3*128,0`` is read as 128,128,128,0, and one rate stands for
as many as the actor has phases.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from xml.parsers import expat
from xml.sax.saxutils import quoteattr

from papers.dataflow.csdf import Actor, Channel, DataflowError, DataflowGraph, shortened

# XML as elements with their lines, read without trust: no DOCTYPE, so no entities; bounded sizes.

MOST_BYTES = 64 << 20
_MOST_ELEMENTS = 500_000
_MOST_DEPTH = 32


@dataclass(slots=True)
class _Element:
    """An element of the file ``path``; texts are not kept."""

    path: Path
    line: int
    tag: str
    attributes: dict[str, str]
    children: list["_Element"] = field(default_factory=list)

    def error(self, reason: str) -> DataflowError:
        """Return the error that this element is wrong."""
        return DataflowError(f"{self.path}: line {self.line}: <{self.tag[:40]}>: {reason}")

    def all(self, tag: str) -> Iterator["_Element"]:
        """Yield the children called ``tag``."""
        return (child for child in self.children if child.tag == tag)

    def one(self, tag: str) -> "_Element":
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
        self.root: _Element | None = None
        self._path = path
        self._open: list[_Element] = []
        self._count = 0
        self.parser = expat.ParserCreate()
        self.parser.StartElementHandler = self._start
        self.parser.EndElementHandler = self._end
        self.parser.StartDoctypeDeclHandler = self._doctype

    def _start(self, tag: str, attributes: dict[str, str]) -> None:
        line = self.parser.CurrentLineNumber
        element = _Element(self._path, line, tag, attributes)
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


def _read_elements(path: Path) -> _Element:
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


# Graphs written, and read back.

#: Rates and times of a file together.
MOST_NUMBERS = 8_000_000
#: Of a graph: what is searched and placed takes the square of their number. Networks have hundreds.
MOST_CHANNELS = 4_000
_SCHEMA = "http://www.es.ele.tue.nl/sdf3/xsd/sdf3-csdf.xsd"
_HEAD = (
    '<?xml version="1.0" encoding="UTF-8"?>',
    '<sdf3 type="csdf" version="1.0" xmlns:xsi="http://www.w3.org/2001/XMLSchema-instance"'
    f' xsi:noNamespaceSchemaLocation="{_SCHEMA}">',
)


def sdf3_text(graph: DataflowGraph) -> str:
    """Return ``graph`` as a file of SDF3."""
    return "\n".join((*_HEAD, *_graph_lines(graph), "</sdf3>", ""))


def _graph_lines(graph: DataflowGraph) -> Iterator[str]:
    name = quoteattr(graph.name)
    yield f"  <applicationGraph name={name}>"
    yield f"    <csdf name={name} type={name}>"
    for number, actor in enumerate(graph.actors):
        called = quoteattr(actor.name)
        yield f"      <actor name={called} type={called}>"
        for out in graph.outgoing[number]:
            yield _port("out", out, graph.channels[out].production)
        for into in graph.incoming[number]:
            yield _port("in", into, graph.channels[into].consumption)
        yield "      </actor>"
    for number, channel in enumerate(graph.channels):
        source, target = (quoteattr(graph.actors[n].name) for n in (channel.source, channel.target))
        yield (
            f"      <channel name={quoteattr(channel.name)} srcActor={source} "
            f'srcPort="out{number}" dstActor={target} dstPort="in{number}" '
            f'initialTokens="{channel.initial}"/>'
        )
    yield "    </csdf>"
    yield "    <csdfProperties>"
    for actor in graph.actors:
        yield f"      <actorProperties actor={quoteattr(actor.name)}>"
        yield '        <processor type="core" default="true">'
        yield f'          <executionTime time="{_joined(actor.times)}"/>'
        yield "        </processor>"
        yield "      </actorProperties>"
    for channel in graph.channels:
        yield f"      <channelProperties channel={quoteattr(channel.name)}>"
        yield f'        <tokenSize sz="{channel.token_size}"/>'
        yield "      </channelProperties>"
    yield "    </csdfProperties>"
    yield "  </applicationGraph>"


def _port(kind: str, channel: int, rates: Iterable[int]) -> str:
    return f'        <port type="{kind}" name="{kind}{channel}" rate="{_joined(rates)}"/>'


def _joined(numbers: Iterable[int]) -> str:
    return ",".join(map(str, numbers))


def read_sdf3(path: Path) -> DataflowGraph:
    """Return the graph in a file of SDF3.

    Raises:
        DataflowError: it is none; the message names the element and what was expected.
    """
    root = _read_elements(path)
    if root.tag != "sdf3" or root.attributes.get("type") != "csdf":
        raise root.error('expected <sdf3 type="csdf">')
    application = root.one("applicationGraph")
    try:
        return _Reading(application).graph()
    except DataflowError as exc:
        if str(exc).startswith(str(path)):
            raise
        raise DataflowError(f"{path}: {exc}") from exc


@dataclass(slots=True)
class _Port:
    element: _Element
    kind: str
    rates: tuple[int, ...]
    used: bool = False


class _Reading:
    def __init__(self, application: _Element) -> None:
        self._application = application
        self._csdf = application.one("csdf")
        self._ports: dict[tuple[str, str], _Port] = {}
        self._numbers: dict[str, int] = {}
        self._phases: list[int] = []
        self._read = 0

    def graph(self) -> DataflowGraph:
        elements = list(self._csdf.all("actor"))
        for element in elements:
            self._read_ports(element)
        times, sizes = self._properties()
        actors = []
        for number, element in enumerate(elements):
            name = element.text("name")
            given = times.get(name, (1,))
            if len(given) > 1 and self._phases[number] == 1:
                self._phases[number] = len(given)
            actors.append(Actor(name, self._spread(element, given, number)))
        channel_elements = list(self._csdf.all("channel"))
        if max(len(elements), len(channel_elements)) > MOST_CHANNELS:
            raise self._csdf.error(f"expected at most {MOST_CHANNELS:,} actors and channels")
        channels = tuple(self._channel(element, sizes) for element in channel_elements)
        for port in self._ports.values():
            if not port.used:
                raise port.element.error("no channel begins or ends here, expected one")
        called = self._application.attributes.get("name") or self._csdf.attributes.get("name")
        return DataflowGraph(called or "graph", tuple(actors), channels)

    def _read_ports(self, actor: _Element) -> None:
        name = actor.text("name")
        if name in self._numbers:
            raise actor.error(f"a second actor {shortened(name)}")
        self._numbers[name] = len(self._numbers)
        lengths = {1}
        for element in actor.all("port"):
            kind, key = element.text("type"), (name, element.text("name"))
            if kind not in {"in", "out"}:
                raise element.error(f"type: {shortened(kind)}, expected in or out")
            if key in self._ports:
                raise element.error(f"a second port {shortened(key[1])} of {shortened(name)}")
            rates = self._series(element, "rate")
            self._ports[key] = _Port(element, kind, rates)
            lengths.add(len(rates))
        if len(lengths) > 2:
            raise actor.error(f"ports of {sorted(lengths)[1:4]} rates, expected as many of each")
        self._phases.append(max(lengths))

    def _series(self, element: _Element, name: str) -> tuple[int, ...]:
        """Return the numbers of an attribute, with 3*128 as three of them."""
        found: list[int] = []
        for part in element.text(name).split(","):
            times, star, number = part.partition("*")
            count = element.as_number(name, times) if star else 1
            self._read += count
            if self._read > MOST_NUMBERS:
                raise element.error(f"expected at most {MOST_NUMBERS:,} rates and times in a file")
            found += [element.as_number(name, number if star else times)] * count
        if not found:
            raise element.error(f"{name}: no number, expected one for each phase")
        return tuple(found)

    def _spread(self, element: _Element, numbers: tuple[int, ...], actor: int) -> tuple[int, ...]:
        """Return ``numbers``, one for each phase of ``actor``."""
        phases = self._phases[actor]
        if len(numbers) == phases:
            return numbers
        if len(numbers) > 1:
            raise element.error(f"{len(numbers)} numbers, expected {phases}: one for each phase")
        self._read += phases
        if self._read > MOST_NUMBERS:
            raise element.error(f"expected at most {MOST_NUMBERS:,} rates and times in a file")
        return numbers * phases

    def _properties(self) -> tuple[dict[str, tuple[int, ...]], dict[str, int]]:
        """Return the times of actors and the token sizes of channels that are given."""
        times: dict[str, tuple[int, ...]] = {}
        sizes: dict[str, int] = {}
        for properties in self._application.all("csdfProperties"):
            for element in properties.all("actorProperties"):
                processors = list(element.all("processor"))
                chosen = [p for p in processors if p.attributes.get("default") == "true"]
                for processor in (chosen or processors)[:1]:
                    for time in processor.all("executionTime"):
                        times[element.text("actor")] = self._series(time, "time")
            for element in properties.all("channelProperties"):
                for size in element.all("tokenSize"):
                    sizes[element.text("channel")] = size.number("sz", 1)
        return times, sizes

    def _channel(self, element: _Element, sizes: dict[str, int]) -> Channel:
        name = element.text("name")
        source, production = self._end(element, "src", "out")
        target, consumption = self._end(element, "dst", "in")
        initial = element.number("initialTokens", 0)
        size = sizes.get(name, 1)
        return Channel(name, source, target, production, consumption, initial, size)

    def _end(self, element: _Element, side: str, kind: str) -> tuple[int, tuple[int, ...]]:
        """Return the actor at an end of a channel, and its rates there."""
        actor, name = element.text(f"{side}Actor"), element.text(f"{side}Port")
        port = self._ports.get((actor, name))
        if port is None or port.kind != kind:
            raise element.error(
                f"{side}Port: {shortened(name)}, expected a port of type {kind} of {shortened(actor)}"
            )
        if port.used:
            raise element.error(f"{side}Port: {shortened(name)} has a channel already")
        port.used = True
        number = self._numbers[actor]
        return number, self._spread(port.element, port.rates, number)
