"""The manifest of a pack (docs/pack-format.md): its fields, and nothing but its fields.

Checks that need the files beside it live in models/packs/pack.py. A manifest stays in memory as long as its
model is served: records have slots, and what is said many times is there once (``read_manifest``).
"""

import base64
import json
import math
from collections.abc import Hashable
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar

import numpy as np
from numpy.typing import NDArray
from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    PositiveInt,
    ValidationInfo,
)

from models.detection.recipe import Detection
from models.images.preprocess import Preprocess
from models.packs.designed import DesignedMemory
from models.packs.target import Target

#: The newest; and that of packs whose weights lie in the file as kernels read them.
FORMAT_VERSION = 3
PLAIN_VERSION = 2
SPAN_ALIGNMENT = 4096
TENSOR_ALIGNMENT = 64
_MAX_DIMENSIONS = 64
_MAX_ELEMENTS = 1 << 48
_MAX_BLOCK = 1 << 10


#: Element types that NumPy and ONNX Runtime both have.
DTYPES = frozenset(
    {"bool", "float16", "float32", "float64", "int8", "int16", "int32", "int64"}
    | {"uint8", "uint16", "uint32", "uint64"}
)


#: Element type of strings of any length: BYTES in the Open Inference Protocol, objects in NumPy.
STRINGS = "bytes"
#: A dimension that is known only when the model has run.
UNKNOWN = -1


_NAMES = {name: name for name in (*DTYPES, STRINGS)}
_ITEM_BYTES = {name: np.dtype(name).itemsize for name in DTYPES}


def _known_dtype(name: str) -> str:
    if name not in _NAMES:
        raise ValueError(f"{name!r} is not an element type")
    return _NAMES[name]


def _possible_shape(shape: tuple[int, ...]) -> tuple[int, ...]:
    # NumPy counts the elements of an empty array, too, as if no dimension was zero.
    if len(shape) > _MAX_DIMENSIONS or math.prod(max(n, 1) for n in shape) > _MAX_ELEMENTS:
        raise ValueError("no array can have this shape")
    return shape


def _not_of_a_file(value: bool) -> bool:
    if value:
        raise ValueError("a device says so, not a manifest")
    return value


_T = TypeVar("_T", bound=Hashable)


def _shared(value: _T, info: ValidationInfo) -> _T:
    """Return what is equal and was read before, if anything; ``read_manifest`` gives the context."""
    same: dict[Hashable, _T] | None = info.context
    return value if same is None else same.setdefault(value, value)


_Shared = AfterValidator(_shared)

Name = Annotated[str, _Shared]
Count = Annotated[int, Field(ge=0), _Shared]
DType = Annotated[str, AfterValidator(_known_dtype)]
Dimension = Annotated[int, Field(ge=UNKNOWN)]
Shape = Annotated[tuple[Dimension, ...], AfterValidator(_possible_shape), _Shared]
Scores = Literal["probabilities", "logits"]
Checksum = Annotated[str, Field(pattern="^[0-9a-f]{16}$")]
#: How numbers are stored; "bytes": as they are.
Encoding = Literal["bytes", "float16", "bfloat16", "int8", "planes"]
#: What ``compile --store`` asks for.
Store = Literal["fp32", "fp16", "bf16", "int8", "lossless"]


class _Record:
    __slots__ = ()
    __pydantic_config__ = ConfigDict(extra="forbid")


@dataclass(frozen=True, slots=True, kw_only=True)
class Array(_Record):
    """Something with a dtype and a shape.

    It is *loose* where its size is not known before it exists: strings, or an unknown dimension.
    """

    dtype: DType
    shape: Shape

    @property
    def is_loose(self) -> bool:
        return self.dtype == STRINGS or UNKNOWN in self.shape

    @property
    def n_bytes(self) -> int:
        """Bytes in memory; 0 of what is loose."""
        return 0 if self.is_loose else math.prod(self.shape) * _ITEM_BYTES[self.dtype]


@dataclass(frozen=True, slots=True, kw_only=True)
class Source(_Record):
    """The file that was compiled."""

    file: str
    n_bytes: Count
    sha256: str


class SourceSizes(BaseModel):
    """Layers and bytes as the source's own tool counts them (Darknet: batch-norm arrays included)."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    tool: str
    layers: Count
    weight_bytes: Count
    largest_layer_bytes: Count


@dataclass(frozen=True, slots=True, kw_only=True)
class FileRecord(_Record):
    """A file of the pack; ``checksum`` is None for weights.bin, whose spans have their own."""

    n_bytes: Count
    checksum: Checksum | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredPart(_Record):
    """The bytes [offset, offset + length) of a span in memory, and how they are stored.

    ``channels`` and ``block``, of "int8": the numbers are an array [channels / block, -1, block], in which
    a channel is the first index and the last. ``planes``, of "planes": the stored bytes of each of four.
    """

    encoding: Annotated[Encoding, _Shared]
    offset: Count
    length: PositiveInt
    channels: Count = 0
    block: Annotated[int, Field(ge=1, le=_MAX_BLOCK), _Shared] = 1
    planes: tuple[PositiveInt, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Stored(_Record):
    """The bytes [offset, offset + length) of weights.bin that a span is made of."""

    offset: Count
    length: PositiveInt
    parts: tuple[StoredPart, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Span(_Record):
    """Weights that come and go together: ``length`` bytes in memory; ``resident`` ones stay there.

    Without ``stored`` they are the bytes [offset, offset + length) of weights.bin; with it ``offset`` is
    where they would be if all spans were. ``checksum``: of the bytes in the file.
    """

    offset: Count
    length: PositiveInt
    checksum: Checksum
    resident: bool = False
    stored: Stored | None = None

    @property
    def file_offset(self) -> int:
        return self.offset if self.stored is None else self.stored.offset

    @property
    def file_length(self) -> int:
        """What the disk brings."""
        return self.length if self.stored is None else self.stored.length


@dataclass(frozen=True, slots=True, kw_only=True)
class GraphRange(_Record):
    """One serialised piece in pieces.bin; ``session_bytes`` bounds the heap of its session.

    ``joins``: it may be one of several in a session; ``is_one``: it is one kernel, and keeps nothing when
    that ends. The device says so that runs it, never a file.
    """

    offset: Count
    length: PositiveInt
    session_bytes: Count
    joins: Annotated[bool, Field(exclude=True), AfterValidator(_not_of_a_file)] = False
    is_one: Annotated[bool, Field(exclude=True), AfterValidator(_not_of_a_file)] = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Value(Array):
    """An activation between pieces; with ``parent`` it lives ``offset`` bytes inside that value.

    A loose one is an input or output of the model and has no memory of the plan.
    """

    name: Name
    parent: Count | None = None
    offset: Count = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Operand(Array):
    """A byte range that a piece reads or writes: of value ``index`` or of span ``index``."""

    kind: Literal["value", "span"]
    index: Count
    offset: Count = 0


Operands = Annotated[tuple[Annotated[Operand, _Shared], ...], _Shared]


@dataclass(frozen=True, slots=True, kw_only=True)
class Resident(_Record):
    """What cannot be streamed: nodes that run as one piece with their weights inside, and why."""

    nodes: tuple[str, ...]
    operators: tuple[str, ...]
    weight_bytes: Count
    reasons: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Unrolled(_Record):
    """What a piece with plain convolutions allocates, by the number of threads (models/packs/unrolling.py).

    ``beside_bytes``, and the more of ``whole_bytes``, their unrolled input, and a segment for each of up to
    ``segments`` threads.
    """

    beside_bytes: Count
    whole_bytes: Count
    segments: Count


@dataclass(frozen=True, slots=True, kw_only=True)
class Piece(_Record):
    """One step: graph ``graph`` on ``inputs`` (x0, x1, ...) giving ``outputs`` (y0, y1, ...).

    Its weights are the ``n_spans`` spans from ``span`` on: one in a manifest, several in a piece that
    models/packs/choice.py joined; their operand reaches from the first into the last. ``scratch_bytes``
    bounds what the kernel allocates while it runs, with as many threads as the compiler's machine has;
    with others, ``unrolled`` does.
    """

    graph: Count
    span: Count | None
    n_spans: PositiveInt = 1
    inputs: Operands
    outputs: Operands
    resident: Resident | None = None
    scratch_bytes: Count = 0
    unrolled: Annotated[Unrolled, _Shared] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Joined(_Record):
    """``n_chunks`` consecutive pieces as one kernel: graph ``graph`` on their operands joined.

    ``scratch_bytes``: of the kernel, where it allocates more than any of its chunks; else 0.
    """

    graph: Count
    n_chunks: PositiveInt
    scratch_bytes: Count = 0
    unrolled: Annotated[Unrolled, _Shared] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Alternative(_Record):
    """The pieces [first_piece, end_piece), the chunks of a layer, in fewer kernels with the same bits."""

    first_piece: Count
    end_piece: Count
    joined: Annotated[tuple[Annotated[Joined, _Shared], ...], _Shared]


@dataclass(frozen=True, slots=True, kw_only=True)
class Window(_Record):
    """Rows of an input that output rows [a, b) are made of (seed 001: the overlap that phases carry).

    They are [a * stride - above, (b - 1) * stride - above + kernel), and [a // factor, b // factor) where
    each row makes ``factor`` rows. What lies outside of the input holds ``fill``; a dilated kernel counts
    whole. ``above`` below 0: so many rows of the input come first that are never read.
    """

    kernel: PositiveInt = 1
    stride: PositiveInt = 1
    above: int = 0
    factor: PositiveInt = 1
    fill: Literal["zero", "lowest"] = "zero"


@dataclass(frozen=True, slots=True, kw_only=True)
class RowPart(_Record):
    """``planes`` planes of a row value, from ``first_plane`` on."""

    row_value: Count
    first_plane: Count = 0
    planes: PositiveInt


@dataclass(frozen=True, slots=True, kw_only=True)
class RowValue(Array):
    """A value as rows: ``planes`` arrays of [rows, bytes of a row] one behind the other.

    ``shape``: of the whole, [1, channels, height, width]. ``value``: where it lies when it is whole. An
    operator makes it; with ``parts``, none does: it is planes of other values one behind the other. Then
    the pieces [first_piece, end_piece) copy them, none where the parts lie there already.
    """

    name: Name
    value: Count
    planes: PositiveInt
    parts: tuple[RowPart, ...] = ()
    first_piece: Count = 0
    end_piece: Count = 0

    @property
    def height(self) -> int:
        return self.shape[2]

    @property
    def row_bytes(self) -> int:
        """Bytes of one row of one plane."""
        return self.n_bytes // (self.planes * self.height)


@dataclass(frozen=True, slots=True, kw_only=True)
class RowInput(_Record):
    """A row value and what an operator needs of it.

    ``columns``: the same of columns, for tiles, where ``above`` is to the left; None: as of rows.
    """

    row_value: Count
    window: Annotated[Window, _Shared] = Window()
    columns: Annotated[Window, _Shared] | None = None

    @property
    def across(self) -> Window:
        """What it needs of columns."""
        return self.columns or self.window


@dataclass(frozen=True, slots=True, kw_only=True)
class RowOperator(_Record):
    """An operator that makes any rows of ``output`` from rows of ``inputs`` and all of ``weights``.

    ``graph`` takes them in this order. It belongs to the pieces [first_piece, end_piece), which make the
    whole with the same bits. ``in_place``: an input whose memory the output may be. ``tile_graph``: what
    makes tiles, where padding to the left and right is memory, too; None: it runs on whole rows only.
    """

    graph: Count
    tile_graph: Count | None = None
    first_piece: Count
    end_piece: Count
    inputs: Annotated[tuple[Annotated[RowInput, _Shared], ...], _Shared]
    weights: Operands
    output: Count
    in_place: Count | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupInput(_Record):
    """What an operator of a bottleneck reads: what operator ``made`` of it makes, a row value, or weights.

    ``axis``: along which a group of channels has its own part: "channels", the first axis above 1 of a
    tensor, a vector or weights, so that each group's lie together; "factors", the same, read as weights of
    one number a channel; "inputs", the second one of weights, where they do not; None: every group reads
    all of it. ``window``: which of its rows are needed.
    """

    made: Count | None = None
    row_value: Count | None = None
    weights: Annotated[Operand, _Shared] | None = None
    axis: Literal["channels", "factors", "inputs"] | None = None
    window: Annotated[Window, _Shared] = Window()


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupOperator(_Record):
    """An operator of a bottleneck; it makes ``shape``, or its channels of a group.

    ``kind`` says when it runs, and what ``graphs`` are:

    - "each": for every group. For each of the bottleneck's sizes four graphs: with the padding above and
      below, above only, none, below only: of all rows, the first, inner ones, the last.
    - "mean": for every group, of all rows; one graph. What it makes is kept for all groups.
    - "once": when all groups have run so far; one graph. Then what "each" made is made again.
    - "sum": for every group, the last operator: it adds what is the group's to ``shape``. Three graphs: of
      the first group with bias and what else is added, of later ones, of the last with the activation.

    ``scratch_bytes``: what its kernel allocates.
    """

    kind: Literal["each", "mean", "once", "sum"]
    graphs: tuple[Count, ...]
    inputs: Annotated[tuple[Annotated[GroupInput, _Shared], ...], _Shared]
    shape: Shape
    scratch_bytes: Count = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Bottleneck(_Record):
    """The pieces [first_piece, end_piece), some of ``channels`` inner channels at a time (seed 004).

    ``sizes``: how many a group may have, ascending, each twice the one before and a multiple of the block.
    The last operator makes the row value ``output``; sums over groups have other rounding than the whole.
    """

    first_piece: Count
    end_piece: Count
    channels: PositiveInt
    sizes: tuple[PositiveInt, ...]
    operators: tuple[GroupOperator, ...]
    output: Count


@dataclass(frozen=True, slots=True, kw_only=True)
class Layer(_Record):
    """A node of the optimised graph, or several that are fused; its pieces are [first_piece, end_piece)."""

    name: Name
    operator: Name
    weight_bytes: Count
    first_piece: Count
    end_piece: Count


@dataclass(frozen=True, slots=True, kw_only=True)
class Port(Array):
    """A graph input or output and the value that holds it.

    ``default``: the bytes of what an input holds that a request leaves out, base64; None: it must be given.
    """

    name: Name
    value: Count
    default: str | None = None

    def default_array(self) -> NDArray[Any] | None:
        """Return the default, with the dtype and shape of the port, or None.

        Raises:
            ValueError: it is not that.
        """
        if self.default is None:
            return None
        data = base64.b64decode(self.default, validate=True)
        if self.is_loose or len(data) != self.n_bytes:
            raise ValueError(f"default: {len(data)} bytes, not {self.n_bytes}")
        return np.frombuffer(data, self.dtype).reshape(self.shape)


@dataclass(frozen=True, slots=True, kw_only=True)
class Classification(_Record):
    """How scores become labels: which output, what it holds, and the label of each index."""

    output: str
    scores: Scores
    labels: tuple[str, ...] = ()


class Manifest(BaseModel):
    """See docs/pack-format.md. ``pieces`` are the finest; models/packs/choice.py joins them.

    ``least_chunk_bytes``: what ``largest_chunk_bytes`` would be with the smallest --chunk. ``store``: what
    was asked for; each span says how it is stored.
    """

    # Pydantic would keep strings for as long as the process lives.
    model_config = ConfigDict(frozen=True, extra="forbid", cache_strings="keys")

    format_version: Literal[2, 3] = 2
    name: str
    target: Target
    source: Source
    files: dict[str, FileRecord]
    spans: tuple[Span, ...]
    graphs: tuple[GraphRange, ...]
    values: tuple[Value, ...]
    pieces: tuple[Piece, ...]
    alternatives: tuple[Alternative, ...] = ()
    row_values: tuple[RowValue, ...] = ()
    row_operators: tuple[RowOperator, ...] = ()
    bottlenecks: tuple[Bottleneck, ...] = ()
    layers: tuple[Layer, ...]
    inputs: tuple[Port, ...]
    outputs: tuple[Port, ...]
    preprocess: Preprocess | None = None
    classification: Classification | None = None
    detection: Detection | None = None
    source_sizes: SourceSizes | None = None
    designed: DesignedMemory | None = None
    parameters: Count
    least_chunk_bytes: Count = 0
    store: Store = "fp32"

    @property
    def required_inputs(self) -> tuple[Port, ...]:
        """The inputs that have no default."""
        return tuple(port for port in self.inputs if port.default is None)

    def defaults(self) -> dict[str, NDArray[Any]]:
        """Return what the inputs hold that a request leaves out."""
        arrays = ((port.name, port.default_array()) for port in self.inputs)
        return {name: array for name, array in arrays if array is not None}

    @property
    def weight_bytes(self) -> int:
        """Sum of the layers' weights, without padding."""
        return sum(layer.weight_bytes for layer in self.layers)

    @property
    def expands(self) -> bool:
        """Whether weights are stored otherwise than kernels read them."""
        return any(span.stored is not None for span in self.spans)

    @property
    def resident_pieces(self) -> list[Resident]:
        """What is not streamed."""
        return [piece.resident for piece in self.pieces if piece.resident is not None]

    @property
    def largest_layer_bytes(self) -> int:
        return max((layer.weight_bytes for layer in self.layers), default=0)

    @property
    def largest_chunk_bytes(self) -> int:
        """The longest streamed span: the smallest ring that can run this pack."""
        return max((span.length for span in self.spans if not span.resident), default=0)


def read_manifest(text: bytes) -> Manifest:
    """Return the manifest that ``text`` is; what is equal in it is one object.

    Raises:
        ValidationError: it is none.
    """
    return Manifest.model_validate_json(text, context={})


def write_manifest(manifest: Manifest, path: Path) -> None:
    """Write ``manifest`` as JSON; fields that have their default are left out, but not the version."""
    fields = manifest.model_dump(mode="json", exclude_defaults=True)
    document = {"format_version": manifest.format_version, **fields}
    path.write_text(json.dumps(document, indent=1) + "\n", "utf-8")
