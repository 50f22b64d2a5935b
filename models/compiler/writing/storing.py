"""Store weights in fewer bytes than they have in memory (models/packs/storing.py): which, and how.

Only weights of convolutions and fully connected layers are stored otherwise, and only where that makes
their span shorter in the file. int8 is symmetric, with a scale for each output channel: the largest
magnitude over 127.

Weights that were integers in the source stay these, whatever is asked for: whole numbers times a scale of
their channel, found in the floats that kernels read. How the compiler turned, blocked and cut them since,
or folded batch norms into them, matters nothing: a channel of such numbers has a scale, its largest
magnitude over one of the integers from 1 to 128.
"""

from collections.abc import Collection, Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from models.compiler.analysis.pieces import Slice
from models.compiler.cutting.layout import PlannedSpan, align, slice_bytes, span_bytes
from models.errors import CompileError
from models.graphs.graph import Graph
from models.network.catalogue import traits_of
from models.network.node import Node
from models.packs.names import Store
from models.packs.records.spans import SPAN_ALIGNMENT, Encoding, Stored, StoredPart
from models.packs.storing import (
    NUMBER_BYTES,
    close_planes,
    expand_part,
    least_length,
    places,
    scale_bytes,
    stored_bytes,
)
from models.packs.target import Target

_ENCODINGS: dict[Store, Encoding] = {"fp16": "float16", "bf16": "bfloat16", "int8": "int8"}
# Smaller tensors gain less than a page, and are often those that matter most (depthwise kernels).
_LEAST_BYTES = 4096
_LARGEST = 127
# Of the largest number; rounding alone loses a 254th at most. More where none of 16 bits are as large, or
# as small.
_MOST_LOST = 1 / 200
Bytes = NDArray[np.uint8]
# What quantisers take as the largest: of 8 bits, 4 bits, then any other.
_USUAL = (127, 128, 7, 8)
_LARGESTS = (*_USUAL, *(each for each in range(126, 0, -1) if each not in _USUAL))
# Numbers of a channel that are tried first: few others look whole.
_TRIED = 32
_LOOKS_WHOLE = 1e-3
# A scale times a factor of a batch norm was rounded once more: each number is a unit or two off in its last
# place.
_ROUNDED = 2.0**-22
Floats = NDArray[np.float32]


@dataclass(frozen=True)
class ChannelAxis:
    """Where output channels are in a weight: the first index, in blocks of ``block``, or ``last``."""

    block: int = 1
    last: bool = False

    def of(self, part: Slice) -> tuple[int, int]:
        """Return how many there are in ``part``, and how many lie side by side."""
        if self.last:
            return part.shape[-1], part.shape[-1]
        return part.shape[0], self.block


def weight_channels(graph: Graph, target: Target) -> dict[str, ChannelAxis]:
    """Return the weights of convolutions and fully connected layers, by name."""
    found: dict[str, ChannelAxis] = {}
    mixed: set[str] = set()
    for node in graph.nodes:
        for place, name in enumerate(node.inputs):
            if not graph.is_weight(name) or graph.constants[name].dtype != np.float32:
                continue
            channels = _channels(node, target) if place == 1 else None
            if channels is None or found.setdefault(name, channels) != channels:
                mixed.add(name)
    return {name: channels for name, channels in found.items() if name not in mixed}


def _channels(node: Node, target: Target) -> ChannelAxis | None:
    """Return where ``node`` has the output channels of its second input; None: it is no weight."""
    traits = traits_of(node.operator)
    operand = traits.operand(1)
    if operand is None or not traits.layer:
        return None
    if operand.axis == 0:
        return ChannelAxis(target.block if traits.is_blocked else 1)
    return ChannelAxis(last=not node.attributes.get("transB")) if operand.axis == -1 else None


class Storing:
    """Stores the spans of ``graph`` as ``store`` says.

    ``tables``: constants of which rows are read alone, so that they stay as they are. ``kept``: layers
    whose weights it cannot hold, and why.
    """

    def __init__(
        self, graph: Graph, target: Target, store: Store, tables: Collection[str] = ()
    ) -> None:
        self.kept: dict[str, str] = {}
        self._graph = graph
        self._tables = tables
        # Weights have names of ONNX Runtime's by now; `inspect` shows the layers.
        self._layers = {name: node.label for node in graph.nodes for name in node.inputs[1:2]}
        self._store = store
        # Only there: what was trained in floats is no whole number, which takes time to find.
        self._were_integers = "" in graph.dequantised.values()
        rounds = store in _ENCODINGS or self._were_integers
        self._weights = weight_channels(graph, target) if rounds else {}

    def stored(self, span: PlannedSpan, offset: int) -> tuple[Stored, Bytes]:
        """Return how ``span`` is stored at ``offset`` of the file, and its bytes there.

        Raises:
            CompileError: its numbers are none.
        """
        content = span_bytes(self._graph, span)
        plain = (StoredPart(encoding="bytes", offset=0, length=span.length),)
        unchanged = Stored(offset=offset, length=span.length, parts=plain), content
        if any(part.name in self._tables for part in span.parts):
            return unchanged
        parts, pieces = self._encoded(span, content)
        length = align(least_length(parts), SPAN_ALIGNMENT)
        if length >= span.length:
            return unchanged
        data = np.zeros(length, np.uint8)
        for (part, start), piece in zip(places(parts), pieces, strict=True):
            data[start : start + stored_bytes(part)] = piece
        return Stored(offset=offset, length=length, parts=parts), data

    def _encoded(
        self, span: PlannedSpan, content: Bytes
    ) -> tuple[tuple[StoredPart, ...], list[Bytes]]:
        """Return the parts of ``span`` and the stored bytes of each."""
        parts = list(self._parts(span))
        if self._store == "lossless" and all(part.encoding == "bytes" for part, _ in parts):
            made = close_planes(content)
            whole = StoredPart(
                encoding="planes", offset=0, length=span.length, planes=made.planes, kept=made.kept
            )
            return (whole,), [made.data]
        return tuple(part for part, _ in parts), [data for _, data in parts]

    def _parts(self, span: PlannedSpan) -> Iterator[tuple[StoredPart, Bytes]]:
        for offset, own in sorted({offset: own for own, offset in span.parts.items()}.items()):
            raw = slice_bytes(self._graph, own)
            channels = self._weights.get(own.name)
            made = None
            if channels is not None and len(raw) >= _LEAST_BYTES:
                made = self._part(own, offset, raw, channels)
            yield made or (StoredPart(encoding="bytes", offset=offset, length=len(raw)), raw)

    def _part(
        self, own: Slice, offset: int, raw: Bytes, channels: ChannelAxis
    ) -> tuple[StoredPart, Bytes] | None:
        """Return how the weight ``own`` is stored; None: as it is."""
        count, block = channels.of(own)
        numbers = np.ascontiguousarray(raw).view(np.float32)
        if count % block or numbers.size % count:
            return None
        given = self._given(own, offset, numbers, channels)
        if given is not None or self._store not in _ENCODINGS:
            return given
        self._check(own.name, numbers)
        part = StoredPart(
            encoding=_ENCODINGS[self._store],
            offset=offset,
            length=len(raw),
            channels=count if self._store == "int8" else 0,
            block=block if self._store == "int8" else 1,
        )
        data = encoded(part, numbers)
        again = np.empty(len(raw), np.uint8)
        expand_part(part, data, again)
        lost, largest = np.abs(again.view(np.float32) - numbers).max(), np.abs(numbers).max()
        if lost > _MOST_LOST * largest:
            self.kept[self._layers[own.name]] = f"the largest number is {largest:.3g}"
            return None
        return part, data

    def _given(
        self, own: Slice, offset: int, numbers: NDArray[np.float32], channels: ChannelAxis
    ) -> tuple[StoredPart, Bytes] | None:
        """Return the weight ``own`` as the integers that it was in the source; None: it was none."""
        count, block = channels.of(own)
        blocks = numbers.reshape(count // block, -1, block).swapaxes(1, 2)
        found = None
        if self._were_integers:
            found = whole_numbers(blocks.reshape(count, -1), exact=self._store == "lossless")
        if found is None:
            return None
        part = StoredPart(
            encoding="int8", offset=offset, length=numbers.nbytes, channels=count, block=block
        )
        integers = found.integers.reshape(blocks.shape).swapaxes(1, 2)
        return part, _int8(part, found.scales, integers)

    def _check(self, name: str, numbers: NDArray[np.float32]) -> None:
        if not np.isfinite(numbers).all():
            raise CompileError(
                f"weights of {self._layers[name]!r} have NaN or infinite numbers: they cannot be stored as "
                f"{self._store}; --store fp32 or lossless keeps them"
            )


def encoded(part: StoredPart, numbers: NDArray[np.float32]) -> Bytes:
    """Return the stored bytes of ``numbers``, float32 [part.length / 4], rounded to nearest, even on ties.

    What the encoding cannot hold becomes infinite.
    """
    if part.encoding == "float16":
        with np.errstate(over="ignore"):
            return numbers.astype(np.float16).view(np.uint8)
    if part.encoding == "bfloat16":
        bits = numbers.view(np.uint32)
        rounded = bits + np.uint32(0x7FFF) + ((bits >> np.uint32(16)) & np.uint32(1))
        return (rounded >> np.uint32(16)).astype(np.uint16).view(np.uint8)
    rows = numbers.reshape(part.channels // part.block, -1, part.block)
    scales = np.abs(rows).max(axis=1, keepdims=True) / np.float32(_LARGEST)
    # A channel of zeros, or of numbers so small that their scale is none, is zero.
    whole = np.rint(np.divide(rows, scales, out=np.zeros_like(rows), where=scales > 0))
    return _int8(part, scales, np.clip(whole, -_LARGEST, _LARGEST).astype(np.int8))


def _int8(part: StoredPart, scales: NDArray[np.float32], integers: NDArray[np.int8]) -> Bytes:
    """Return the stored bytes of ``integers`` in the order of memory."""
    data = np.zeros(scale_bytes(part) + integers.size, np.uint8)
    data[: NUMBER_BYTES * part.channels] = scales.reshape(-1).view(np.uint8)
    data[scale_bytes(part) :] = integers.reshape(-1).view(np.uint8)
    return data


@dataclass(frozen=True)
class WholeNumbers:
    """``scales``: float32 [channels]. ``integers``: int8 [channels, numbers]."""

    scales: Floats
    integers: NDArray[np.int8]


def whole_numbers(rows: Floats, exact: bool) -> WholeNumbers | None:
    """Return ``rows``, [channels, numbers], as integers times scales; None where they are not.

    ``exact``: to the bit; else within 2 ** -22 of each number. A channel of zeros has scale 0.
    """
    largest = np.abs(rows).max(axis=1)
    scales = np.zeros(len(rows), np.float32)
    left = np.flatnonzero(largest > 0)
    if not np.isfinite(largest).all():
        return None
    for most in _LARGESTS:
        if not len(left):
            break
        guess = largest[left] / np.float32(most)
        likely = _look_whole(rows[left], guess)
        if likely.any():
            scales[left[likely]] = _fitting(rows[left[likely]], guess[likely], exact)
            left = left[scales[left] == 0]
    if len(left):
        return None
    return WholeNumbers(scales, _integers(rows, scales).astype(np.int8))


def _look_whole(rows: Floats, scales: Floats) -> NDArray[np.bool_]:
    step = -(-rows.shape[1] // _TRIED)
    some = rows[:, ::step] / scales[:, None]
    looks: NDArray[np.bool_] = (np.abs(some - np.rint(some)) < _LOOKS_WHOLE).all(axis=1)
    return looks


def _integers(rows: Floats, scales: Floats) -> Floats:
    whole: Floats = np.rint(
        np.divide(rows, scales[:, None], out=np.zeros_like(rows), where=scales[:, None] > 0)
    )
    return whole


def _fitting(rows: Floats, guess: Floats, exact: bool) -> Floats:
    """Return the scale beside ``guess`` that makes each row of integers; 0 where none does.

    A quotient is rounded: the scale itself is one of its neighbours.
    """
    integers = _integers(rows, guess)
    down, up = (np.nextafter(guess, np.float32(limit)) for limit in (0, np.inf))
    # What 128 stands for must be negative.
    held = integers.max(axis=1, initial=0) <= np.iinfo(np.int8).max
    best, least = np.zeros_like(guess), np.full(guess.shape, 0.0 if exact else _ROUNDED)
    for scale in (guess, down, up):
        error = np.abs(integers * scale[:, None] - rows)
        relative = np.divide(error, np.abs(rows), out=error, where=rows != 0).max(axis=1)
        better = held & (relative <= least) & ((best == 0) | (relative < least))
        best, least = np.where(better, scale, best), np.where(better, relative, least)
    return best
