"""The CNN that a pack computes: row operators as layers with windows, what runs whole as layers without.

Batch normalisation and activations are parts of the convolutions there, and chunks of a layer are one.
Dependencies are found in memory: a layer depends on the layers that last wrote the bytes that it reads.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import groupby

from models.network.fields import Array
from models.network.windows import Window
from models.packs.manifest import Manifest
from models.packs.records.pieces import Operand, ValueBytes
from papers.cnn.layers import Cnn, CnnLayer, Edge, Shape

#: A row operator, a row value that pieces put together, or pieces that run whole.
_Unit = tuple[str, int] | range


class Writers:
    """Remembers which layer wrote what, in the order in which they are given."""

    def __init__(self, manifest: Manifest) -> None:
        self._values = manifest.values
        self._written: dict[int, list[tuple[ValueBytes[int], int]]] = {}

    def place(self, value: int, offset: int = 0, n_bytes: int | None = None) -> ValueBytes[int]:
        """Return where bytes of ``value`` lie, from ``offset`` on, all where ``n_bytes`` is None."""
        length = max(self._values[value].n_bytes - offset, 1) if n_bytes is None else n_bytes
        while (parent := self._values[value].parent) is not None:
            offset += self._values[value].offset
            value = parent
        return ValueBytes(value, offset, offset + length)

    def write(self, place: ValueBytes[int], layer: int) -> None:
        self._written.setdefault(place.root, []).append((place, layer))

    def read(self, place: ValueBytes[int]) -> list[int]:
        """Return the layers that last wrote some of these bytes, each once, the first layer first."""
        layers: set[int] = set()
        wanted = [(place.start, place.end)]
        for written, layer in reversed(self._written.get(place.root, [])):
            left: list[tuple[int, int]] = []
            for start, end in wanted:
                if written.start < end and start < written.end:
                    layers.add(layer)
                    left += [(start, written.start)] * (start < written.start)
                    left += [(written.end, end)] * (written.end < end)
                else:
                    left.append((start, end))
            wanted = left
        return sorted(layers)


@dataclass(frozen=True)
class PackCnn:
    """``cnn``, and for each of its layers the row operator that it is, None where it runs whole.

    ``first_pieces``: where each layer begins; inputs before all pieces, outputs behind them.
    """

    cnn: Cnn
    operators: tuple[int | None, ...]
    first_pieces: tuple[int, ...]

    @cached_property
    def layer_of(self) -> dict[int, int]:
        """The layer of each row operator."""
        pairs = enumerate(self.operators)
        return {operator: layer for layer, operator in pairs if operator is not None}


def cnn_of_pack(manifest: Manifest) -> PackCnn:
    """Return the CNN that ``manifest`` describes; its inputs and outputs are layers of their own."""
    reading = _Reading(manifest)
    for port in manifest.inputs:
        layer = reading.add(CnnLayer(port.name, "input", shape_of(port)), {})
        reading.writers.write(reading.writers.place(port.value), layer)
    for first_piece, read in sorted(reading.units(), key=lambda unit: unit[0]):
        reading.first_piece = first_piece
        reading.read(read)
    reading.first_piece = len(manifest.pieces)
    for port in manifest.outputs:
        sources = reading.writers.read(reading.writers.place(port.value))
        reading.add_whole(port.name, "output", shape_of(port), sources)
    cnn = Cnn(manifest.name, tuple(reading.layers), tuple(reading.edges))
    return PackCnn(cnn, tuple(reading.operators), tuple(reading.first_pieces))


def shape_of(array: Array) -> Shape:
    """Return [1, channels, height, width] as such, anything else as one row of one column.

    [1, blocks, height, width, channels of a block] is the former in ONNX Runtime's blocked layout.
    """
    lengths = [max(length, 1) for length in array.shape]
    if lengths[:1] == [1] and len(lengths) in {4, 5}:
        _, channels, height, width, *block = lengths
        return Shape(height, width, channels * math.prod(block))
    return Shape(1, 1, math.prod(lengths))


@dataclass(frozen=True, slots=True)
class _Taken:
    """What a layer takes of another: through which window, how many channels."""

    window: Window
    channels: int


class _Reading:
    """The layers of ``manifest`` found so far."""

    def __init__(self, manifest: Manifest) -> None:
        self.layers: list[CnnLayer] = []
        self.operators: list[int | None] = []
        self.first_piece = 0  # of what is read now
        self.first_pieces: list[int] = []
        self.edges: list[Edge] = []
        self.writers = Writers(manifest)
        self._manifest = manifest
        self._makers: dict[int, int] = {}  # layers, by the row value that they make
        # By row value that pieces put together: from which plane on there are planes of which layer.
        self._copied: dict[int, list[tuple[int, int, int]]] = {}
        self._names: set[str] = set()

    def units(self) -> Iterator[tuple[int, _Unit]]:
        """Yield what there is to read, with its first piece."""
        pieces = set(range(len(self._manifest.pieces)))
        for number, item in enumerate(self._manifest.row_operators):
            pieces -= {*range(item.first_piece, item.end_piece)}
            yield item.first_piece, ("operator", number)
        for number, value in enumerate(self._manifest.row_values):
            if value.first_piece < value.end_piece:
                pieces -= {*range(value.first_piece, value.end_piece)}
                yield value.first_piece, ("copy", number)
        for _, group in groupby(sorted(pieces), key=self._layer_of_piece):
            chunks = list(group)
            yield chunks[0], range(chunks[0], chunks[-1] + 1)

    def read(self, unit: _Unit) -> None:
        match unit:
            case ("operator", number):
                self._read_operator(number)
            case ("copy", number):
                self._read_copy(number)
            case range():
                self._read_whole(unit)

    def add(self, layer: CnnLayer, taken: dict[int, _Taken], operator: int | None = None) -> int:
        """Add a layer and the edges to it; return its number."""
        number = len(self.layers)
        name = layer.name
        while name in self._names:
            name += "'"
        self._names.add(name)
        self.layers.append(replace(layer, name=name))
        self.operators.append(operator)
        self.first_pieces.append(self.first_piece)
        for source, item in taken.items():
            window = None if item.window == layer.window else item.window
            all_channels = item.channels >= self.layers[source].output.channels
            channels = None if all_channels else item.channels
            self.edges.append(Edge(source, number, window, channels))
        return number

    def add_whole(self, name: str, operator: str, output: Shape, sources: Sequence[int]) -> int:
        """Add a layer that needs all of its inputs before it begins."""
        height = max((self.layers[source].output.height for source in sources), default=1)
        window = Window(kernel=height, stride=height)
        taken = {source: _Taken(window, self.layers[source].output.channels) for source in sources}
        return self.add(CnnLayer(name, operator, output, window), taken)

    def _layer_of_piece(self, piece: int) -> int:
        """Return the number of the first layer that ``piece`` belongs to, behind all where none is."""
        layers = self._manifest.layers
        of_piece = (
            number
            for number, item in enumerate(layers)
            if item.first_piece <= piece < item.end_piece
        )
        return next(of_piece, len(layers))

    def _read_whole(self, pieces: range) -> None:
        layers = self._manifest.layers
        layer = self._layer_of_piece(pieces.start)
        names = (layers[layer].name, layers[layer].operator) if layer < len(layers) else None
        run = self._manifest.pieces[pieces.start : pieces.stop]
        own = [self._place(operand) for piece in run for operand in piece.outputs]
        sources = {
            source
            for piece in run
            for operand in piece.inputs
            if operand.kind == "value"
            for source in self.writers.read(self._place(operand))
        }
        number = self.add_whole(
            *(names or (f"piece {pieces.start}", "unknown")), self._output(pieces), sorted(sources)
        )
        for place in own:
            self.writers.write(place, number)

    def _output(self, pieces: range) -> Shape:
        """Return what ``pieces`` make: one value as it is, several as one row."""
        outputs = [item for n in pieces for item in self._manifest.pieces[n].outputs]
        values = {item.index for item in outputs}
        elements = sum(shape_of(item).elements for item in outputs)
        for value in values if len(values) == 1 else ():
            shape = shape_of(self._manifest.values[value])
            if shape.elements == elements:
                return shape
        return Shape(1, 1, max(elements, 1))

    def _place(self, operand: Operand) -> ValueBytes[int]:
        return self.writers.place(operand.index, operand.offset, max(operand.n_bytes, 1))

    def _read_operator(self, number: int) -> None:
        item = self._manifest.row_operators[number]
        value = self._manifest.row_values[item.output]
        shape = shape_of(value)
        taken: dict[int, _Taken] = {}
        for row_input in item.inputs:
            read = self._manifest.row_values[row_input.row_value]
            for source, channels in self._sources(row_input.row_value):
                output = self.layers[source].output
                in_rows = output.height == read.height
                part = _Taken(row_input.window, channels if in_rows else output.channels)
                taken[source] = _joined(taken.get(source), part)
        name, kind = self._called(number)
        layer = self.add(CnnLayer(name, kind, shape, item.inputs[0].window), taken, number)
        self._makers[item.output] = layer
        if self._manifest.values[value.value].n_bytes == value.n_bytes:
            self.writers.write(self.writers.place(value.value), layer)

    def _read_copy(self, number: int) -> None:
        """Remember the layers that made what is copied now: later it may be written over."""
        value = self._manifest.row_values[number]
        plane_bytes = value.row_bytes * value.height
        copied: list[tuple[int, int, int]] = []
        end = 0
        for part in value.parts:
            start, end = end, end + part.planes
            for source, planes in self._planes(part.row_value, part.first_plane, part.planes):
                copied.append((start, planes, source))
                place = self.writers.place(value.value, start * plane_bytes, planes * plane_bytes)
                self.writers.write(place, source)
                start += planes
        self._copied[number] = copied

    def _sources(self, row_value: int) -> Iterator[tuple[int, int]]:
        """Yield the layers that made the planes of a row value, and how many channels each made."""
        value = self._manifest.row_values[row_value]
        for source, planes in self._planes(row_value, 0, value.planes):
            yield source, planes * (value.shape[1] // value.planes)

    def _planes(self, row_value: int, first: int, planes: int) -> Iterator[tuple[int, int]]:
        """Yield the layers that made planes from ``first`` on of a row value, and how many each made."""
        value = self._manifest.row_values[row_value]
        if row_value in self._makers:
            yield self._makers[row_value], planes
        elif row_value in self._copied:
            for start, count, source in self._copied[row_value]:
                common = min(start + count, first + planes) - max(start, first)
                if common > 0:
                    yield source, common
        elif value.parts:
            start = 0
            for part in value.parts:
                low, high = max(start, first), min(start + part.planes, first + planes)
                if low < high:
                    within = part.first_plane + low - start
                    yield from self._planes(part.row_value, within, high - low)
                start += part.planes
        else:
            plane_bytes = value.row_bytes * value.height
            place = self.writers.place(value.value, first * plane_bytes, planes * plane_bytes)
            sources = self.writers.read(place)
            for source in sources:
                yield source, planes // len(sources) or 1

    def _called(self, number: int) -> tuple[str, str]:
        """Return the name and kind of a row operator: its layer's, where its pieces are one for each."""
        item = self._manifest.row_operators[number]
        beside = [
            n
            for n, other in enumerate(self._manifest.row_operators)
            if other.first_piece == item.first_piece
        ]
        layers = [
            layer
            for layer in self._manifest.layers
            if layer.first_piece <= item.first_piece < layer.end_piece
        ]
        if len(layers) == len(beside):
            layer = layers[beside.index(number)]
            return layer.name, layer.operator
        return self._manifest.row_values[item.output].name, "rows"


def _joined(one: _Taken | None, other: _Taken) -> _Taken:
    """Return what takes both of what a layer takes of another."""
    if one is None:
        return other
    channels = one.channels + other.channels
    first, second = one.window, other.window
    if first == second:
        return _Taken(first, channels)
    before = max(first.before, second.before)
    reach = max(first.reach - first.before, second.reach - second.before)
    behind = max(first.behind, second.behind)
    both = Window(before + reach, first.stride, before=before, behind=behind)
    return _Taken(both, channels)
