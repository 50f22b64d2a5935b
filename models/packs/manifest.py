"""The manifest of a pack (docs/reference/pack-manifest.md): its fields, and nothing but its fields.

What they are made of is in ``records/``. Checks that need the files beside it live in models/packs/pack.py.
"""

import json
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, Protocol

import xxhash

from models.depth import Depth
from models.detection.recipe import Detection
from models.embedding import Embedding
from models.images.preprocess import Preprocess
from models.network.fields import Count
from models.network.operators.quantised import Quantised
from models.packs.names import Store
from models.packs.records.pieces import (
    Alternative,
    ElementProgram,
    GraphRange,
    Layer,
    Piece,
    ResidentPiece,
    Value,
)
from models.packs.records.ports import Classification, DesignedMemory, Port, SourceFile, SourceSizes
from models.packs.records.row_parts import Bottleneck, RowOperator, RowValue
from models.packs.records.spans import FileRecord, Span
from models.packs.target import Target
from models.records import Record, plain, read_json
from models.segmentation import Segmentation
from models.sound.recipe import Sound
from models.text.recipe import TextInput

#: The file of the tokenizer, where a model takes texts.
TOKENIZER = "tokenizer.json"


def checksum(data: bytes | memoryview) -> str:
    """Return the xxh3-64 of ``data`` as 16 hexadecimal digits."""
    return xxhash.xxh3_64_hexdigest(data)


_OPENED = b"{\n"
_CHECKSUM = re.compile(rb'\{\n"checksum": "([0-9a-f]{16})",\n')


class _HasSpan(Protocol):
    @property
    def span(self) -> int | None: ...
    @property
    def streamed_span(self) -> int | None: ...


class _Described(Protocol):
    """What says the layers, weights and inputs of a network."""

    @property
    def layers(self) -> tuple[Layer, ...]: ...
    @property
    def pieces(self) -> Sequence[_HasSpan]: ...
    @property
    def spans(self) -> tuple[Span, ...]: ...
    @property
    def inputs(self) -> tuple[Port, ...]: ...


#: What can be asked of a model with a photograph, as it stands behind its name and a colon.
Verb = Literal["classify", "detect", "segment", "depth", "embed", "infer"]


class Measures:
    """What follows from the layers, weights and inputs of a network, or of a part of it."""

    @property
    def required_inputs(self: _Described) -> tuple[Port, ...]:
        """The inputs that have no default."""
        return tuple(port for port in self.inputs if port.default is None)

    @property
    def weight_bytes(self: _Described) -> int:
        """Sum of the layers' weights, without padding; those that several layers share count once."""
        total, first_pieces = 0, dict[tuple[int, ...], int]()
        merged: Counter[tuple[int, ...]] = Counter()
        limits: dict[tuple[int, ...], int] = {}
        vectors = sum(span.length for span in self.spans if span.resident)
        for layer in self.layers:
            pieces = self.pieces[layer.first_piece : layer.end_piece]
            spans = [self.spans[piece.span] for piece in pieces if piece.span is not None]
            offsets = tuple(span.file_offset for span in spans)
            if not offsets:
                total += layer.weight_bytes
            elif first_pieces.setdefault(offsets, layer.first_piece) == layer.first_piece:
                # Small layers may be one piece, whose span has what several of them read once.
                merged[offsets] += layer.weight_bytes
                limits[offsets] = vectors + sum(span.length for span in spans)
        return total + sum(min(merged[offsets], limits[offsets]) for offsets in merged)

    @property
    def expands(self: _Described) -> bool:
        """Whether weights are stored otherwise than kernels read them."""
        return any(span.stored is not None for span in self.spans)

    @property
    def largest_layer_bytes(self: _Described) -> int:
        return max((layer.weight_bytes for layer in self.layers), default=0)

    @property
    def largest_chunk_bytes(self: _Described) -> int:
        """The longest streamed span: the smallest ring that can run it."""
        spans = (piece.streamed_span for piece in self.pieces)
        return max((self.spans[span].length for span in spans if span is not None), default=0)


@dataclass(frozen=True, kw_only=True)
class Manifest(Measures, Record):
    """See docs/reference/pack-manifest.md. ``pieces`` are the finest; records/pieces.py joins them.

    ``least_chunk_bytes``: what ``largest_chunk_bytes`` would be with the smallest --chunk. ``store``: what
    was asked for; each span says how it is stored. ``origins``: what recipes and labels are of, by field.
    """

    format_version: Literal[5]
    name: str
    target: Target
    source: SourceFile
    files: dict[str, FileRecord]
    spans: tuple[Span, ...]
    graphs: tuple[GraphRange, ...]
    values: tuple[Value, ...]
    pieces: tuple[Piece, ...]
    alternatives: tuple[Alternative, ...] = ()
    row_values: tuple[RowValue, ...] = ()
    row_operators: tuple[RowOperator, ...] = ()
    bottlenecks: tuple[Bottleneck, ...] = ()
    programs: tuple[ElementProgram, ...] = ()
    quantised: tuple[Quantised, ...] = ()
    layers: tuple[Layer, ...]
    inputs: tuple[Port, ...]
    outputs: tuple[Port, ...]
    preprocess: Preprocess | None = None
    classification: Classification | None = None
    detection: Detection | None = None
    segmentation: Segmentation | None = None
    depth: Depth | None = None
    text: TextInput | None = None
    sound: Sound | None = None
    embedding: Embedding | None = None
    origins: dict[str, str] = field(default_factory=dict)
    source_sizes: SourceSizes | None = None
    designed: DesignedMemory | None = None
    parameters: Count
    least_chunk_bytes: Count = 0
    store: Store = "fp32"

    @property
    def verb(self) -> Verb | None:
        """What is made of a photograph; "infer": tensors alone; None: the model takes none."""
        if self.preprocess is None:
            return None
        if self.detection is not None:
            return "detect"
        if self.segmentation is not None:
            return "segment"
        if self.depth is not None:
            return "depth"
        if self.embedding is not None:
            return "embed"
        return "infer" if self.classification is None else "classify"

    @property
    def text_verb(self) -> Verb | None:
        """What is made of a text; "infer": tensors alone; None: the model takes none."""
        return None if self.text is None else self._vector_or_scores

    @property
    def sound_verb(self) -> Verb | None:
        """What is made of a sound; "infer": tensors alone; None: the model takes none."""
        return None if self.sound is None else self._vector_or_scores

    @property
    def _vector_or_scores(self) -> Verb:
        if self.embedding is not None:
            return "embed"
        return "infer" if self.classification is None else "classify"

    @property
    def named(self) -> Detection | Segmentation | Classification | None:
        """What has labels, where anything may."""
        return self.detection or self.segmentation or self.classification

    @property
    def index_limits(self) -> dict[str, int]:
        """The inputs that are, as they come, indices of tables whose rows are read, and how many rows."""
        ports = {(port.value, port.dtype, port.shape): port.name for port in self.inputs}
        limits: dict[str, int] = {}
        for piece in self.pieces:
            if piece.page_checksums is not None:
                indices, table = sorted(piece.inputs, key=lambda operand: operand.kind == "span")
                name = ports.get((indices.index, indices.dtype, indices.shape))
                if name is not None:
                    limits[name] = min(limits.get(name, table.shape[0]), table.shape[0])
        return limits

    @property
    def shape_text(self) -> str:
        """Its shape for people: [1, 3, 320, 320]; where inputs have several, each with its name."""
        shapes = {port.name: list(port.shape) for port in self.required_inputs}
        distinct = dict.fromkeys(map(str, shapes.values()))
        if len(distinct) == 1:
            return next(iter(distinct))
        return ", ".join(f"{name} {shape}" for name, shape in shapes.items())

    @property
    def resident_pieces(self) -> list[ResidentPiece]:
        """What is not streamed."""
        return [piece.resident for piece in self.pieces if piece.resident is not None]


def read_manifest(text: bytes) -> Manifest:
    """Return the manifest that ``text``, without its checksum, is; what is equal in it is one object.

    Raises:
        FieldError: it is none.
    """
    return read_json(Manifest, text)


def write_manifest(manifest: Manifest, path: Path) -> None:
    """Write ``manifest`` as JSON, a record a line; fields that have their default are left out."""
    document = plain(manifest, without_defaults=True)
    lines = (f"{json.dumps(name)}: {_lines(value)}" for name, value in document.items())
    path.write_bytes(with_checksum(("{\n" + ",\n".join(lines) + "\n}\n").encode()))


def _lines(value: Any) -> str:
    """Return ``value`` as JSON; of a list of records each has a line."""
    if not isinstance(value, list) or not all(isinstance(item, dict) for item in value):
        return json.dumps(value)
    return "[\n" + ",\n".join(f" {json.dumps(item)}" for item in value) + "\n]"


def with_checksum(text: bytes) -> bytes:
    """Return the manifest ``text``, whose first line is a brace, with its checksum in the second one."""
    return _OPENED + b'"checksum": "%b",\n' % checksum(text).encode() + text[len(_OPENED) :]


def without_checksum(text: bytes) -> tuple[bytes, str]:
    """Return a manifest without its checksum, and the checksum that this must have; "": it says none."""
    match = _CHECKSUM.match(text)
    return (_OPENED + text[match.end() :], match[1].decode()) if match else (text, "")
