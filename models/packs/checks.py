"""What a manifest says must be possible: ranges, order, recipes (docs/reference/pack-format.md)."""

import itertools
import math
from collections.abc import Mapping, Sequence
from pathlib import Path

from models.depth import depth_fault
from models.detection.recipe import head_fault
from models.embedding import embedding_fault
from models.errors import PackError
from models.network.fields import UNKNOWN
from models.packs.manifest import TOKENIZER, Manifest
from models.packs.names import MANIFEST
from models.packs.program_checks import check_programs, check_quantised
from models.packs.records.pieces import (
    INDEX_TYPES,
    PAGE_BYTES,
    TENSOR_ALIGNMENT,
    Alternative,
    JoinedPieces,
    Operand,
    Piece,
    channel_axis,
)
from models.packs.records.ports import Port
from models.packs.records.spans import SPAN_ALIGNMENT, Span, Stored, StoredPart
from models.packs.row_checks import check_bottlenecks, check_rows
from models.packs.storing import least_length, part_fault
from models.segmentation import segmentation_fault
from models.sound.recipe import sound_fault
from models.text.recipe import TextInput, text_fault

# What a manifest says of weights.bin must be possible: spans, and how they are stored in it.


class _FileSpans:
    """The spans of all shapes of a pack, one after the other, fill a file of ``size`` bytes."""

    def __init__(self, size: int) -> None:
        self._size = size
        self._end = 0
        self._written: dict[int, Span] = {}

    def check(self, path: Path, manifest: Manifest) -> None:
        """Check the spans of the manifest in ``path``.

        Raises:
            PackError: something in them cannot be; the message names the field.
        """
        end = 0
        for number, span in enumerate(manifest.spans):
            where = f"{path}: spans.{number}"
            _check_follows(where, span.offset, span.length, end)
            if span.resident and number and not manifest.spans[number - 1].resident:
                raise PackError(f"{where}: resident, after one that is not")
            end = span.offset + span.length
            if span.stored is not None and span.at is not None:
                raise PackError(f"{where}.at: {span.at}, of a span that is stored")
            first = self._written.setdefault(span.file_offset, span)
            _check_in_file(where, span, first, self._end)
            if span.stored is not None:
                _check_stored(f"{where}.stored", span, span.stored)
            self._end = max(self._end, span.file_end)
            if self._end > self._size:
                raise PackError(
                    f"{where}: ends at {self._end}, out of range of weights.bin ({self._size} bytes)"
                )

    def check_end(self, path: Path) -> None:
        """Check that the file, whose spans manifests say, the one in ``path`` first, has no others."""
        if self._end != self._size:
            raise PackError(
                f"{path}: spans: the last one ends at {self._end}, not at the end of weights.bin"
            )


def _check_follows(where: str, offset: int, length: int, end: int) -> None:
    """Check that bytes are aligned and begin at ``end``, where those before them end."""
    if offset % SPAN_ALIGNMENT or length % SPAN_ALIGNMENT:
        raise PackError(f"{where}: [{offset}, +{length}) is not on {SPAN_ALIGNMENT}")
    if offset < end:
        raise PackError(f"{where}: overlaps the span before it, which ends at {end}")
    if offset > end:
        raise PackError(f"{where}: leaves a hole from {end} to {offset}")


def _check_in_file(where: str, span: Span, first: Span, file_end: int) -> None:
    """Check that ``span`` begins at ``file_end``, or is as ``first``, which begins where it does."""
    if first is not span:
        if _in_file(first) != _in_file(span):
            raise PackError(
                f"{where}: begins in weights.bin where another span does, but is not the same"
            )
    elif span.stored is not None:
        _check_follows(f"{where}.stored", span.file_offset, span.file_length, file_end)
    elif span.at is not None:
        _check_follows(f"{where}.at", span.file_offset, span.file_length, file_end)
    elif span.offset != file_end:
        raise PackError(f"{where}: is not stored, after spans that are")


def _in_file(span: Span) -> tuple[object, ...]:
    parts = None if span.stored is None else span.stored.parts
    return span.file_length, span.length, span.checksum, parts


def _check_stored(where: str, span: Span, stored: Stored) -> None:
    if stored.length > span.length:
        raise PackError(f"{where}.length: {stored.length}, more than the {span.length} in memory")
    end = 0
    for number, part in enumerate(stored.parts):
        fault = part_fault(part)
        if fault:
            raise PackError(f"{where}.parts.{number}: {fault}")
        if part.offset < end:
            raise PackError(f"{where}.parts.{number}: overlaps the one before it, up to {end}")
        end = part.offset + part.length
    if end > span.length:
        raise PackError(f"{where}.parts: end at {end}, behind the span ({span.length} bytes)")
    rest = span.length - sum(part.length for part in stored.parts)
    # Else a few bytes of a file would ask for any memory.
    if rest >= SPAN_ALIGNMENT + TENSOR_ALIGNMENT * len(stored.parts):
        raise PackError(f"{where}.parts: {rest} bytes of the span are of none, more than padding")
    least = least_length(stored.parts)
    if least > stored.length:
        raise PackError(f"{where}.length: {stored.length}, its parts take {least}")


# What a manifest says of joined chunks must be possible (docs/reference/pack-manifest.md, "Alternatives").
#
# After these checks joining cannot fail, and a joined piece touches no byte that its chunks do not touch.


def _check_alternatives(path: Path, manifest: Manifest) -> None:
    """Check the alternatives of the manifest in ``path``, whose spans and pieces were checked.

    Raises:
        PackError: something in them cannot be; the message names the field.
    """
    before: Alternative | None = None
    for number, alternative in enumerate(manifest.alternatives):
        where = f"{path}: alternatives.{number}"
        _check_range(where, manifest, alternative)
        if before is None or not _same_run(before, alternative):
            if before is not None and alternative.first_piece < before.end_piece:
                raise PackError(
                    f"{where}.first_piece: {alternative.first_piece}: overlaps the run before it, "
                    f"which ends at {before.end_piece}"
                )
            _check_run(where, manifest, alternative)
        elif len(alternative.joined) >= len(before.joined):
            raise PackError(f"{where}.joined: not coarser than the alternative before it")
        for position, part in enumerate(alternative.joined):
            _check_graph(f"{where}.joined.{position}", manifest, part)
        before = alternative


def _same_run(one: Alternative, other: Alternative) -> bool:
    return (one.first_piece, one.end_piece) == (other.first_piece, other.end_piece)


def _check_range(where: str, manifest: Manifest, alternative: Alternative) -> None:
    first, end = alternative.first_piece, alternative.end_piece
    if not first < end <= len(manifest.pieces):
        raise PackError(f"{where}: pieces [{first}, {end}) are out of range")
    count = sum(part.n_chunks for part in alternative.joined)
    if count != end - first:
        raise PackError(f"{where}.joined: n_chunks: {count} in all, of {end - first} pieces")


def _check_graph(where: str, manifest: Manifest, part: JoinedPieces) -> None:
    if part.graph >= len(manifest.graphs):
        raise PackError(f"{where}.graph: {part.graph} is out of range")


def _check_run(where: str, manifest: Manifest, alternative: Alternative) -> None:
    """Check that the pieces of a run have a span each and operands that make one range."""
    run = manifest.pieces[alternative.first_piece : alternative.end_piece]
    for position, (piece, following) in enumerate(itertools.pairwise(run)):
        number = alternative.first_piece + position + 1
        if piece.span is None or following.span != piece.span + 1:
            raise PackError(f"{where}: pieces.{number}.span: {following.span}: not the next one")
        counts = [(len(item.inputs), len(item.outputs)) for item in (piece, following)]
        if counts[0] != counts[1]:
            raise PackError(f"{where}: pieces.{number}: has other operands than the one before")
    for kind in ("inputs", "outputs"):
        for position, column in enumerate(zip(*(getattr(item, kind) for item in run), strict=True)):
            if not _is_one_range(manifest, run, column):
                raise PackError(f"{where}: {kind}.{position} of its pieces cannot be joined")
    if any(piece.span is None for piece in run):
        raise PackError(f"{where}: a piece of it streams nothing")


def _is_one_range(manifest: Manifest, run: tuple[Piece, ...], parts: tuple[Operand, ...]) -> bool:
    """Return whether ``parts``, one of each piece, are all the same or follow each other."""
    axis = channel_axis(parts[0])
    if all(part == parts[0] for part in parts):
        return True
    if axis is None or len({_apart_from(axis, part) for part in parts}) > 1:
        return False
    places = [_place(manifest, piece, part) for piece, part in zip(run, parts, strict=True)]
    return all(
        place[:-1] == following[:-1] and place[-1] + part.n_bytes == following[-1]
        for part, (place, following) in zip(parts, itertools.pairwise(places), strict=False)
    )


def _apart_from(axis: int, part: Operand) -> tuple[object, ...]:
    """Return what must be the same in all ranges that are joined along ``axis``."""
    return part.dtype, channel_axis(part), part.shape[:axis], part.shape[axis + 1 :]


def _place(manifest: Manifest, piece: Piece, part: Operand) -> tuple[str, int, int]:
    """Return where an operand lies: spans that are streamed follow each other as in the file."""
    if part.kind == "span" and part.index == piece.span:
        return "streamed", 0, manifest.spans[part.index].offset + part.offset
    return part.kind, part.index, part.offset


# The manifest as a whole.


def _check_shape(path: Path, shape: Manifest, others: Sequence[Manifest]) -> None:
    """Check that the manifest in ``path`` is another shape of what ``others`` are, the largest first.

    Raises:
        PackError: it is of another network, or another file.
    """
    first = others[0]
    for field in ("name", "target", "source"):
        if getattr(shape, field) != getattr(first, field):
            raise PackError(f"{path}: {field}: not that of {MANIFEST}")
    for name, record in shape.files.items():
        if first.files.get(name) != record:
            raise PackError(f"{path}: files: {name} is not as {MANIFEST} says")
    for kind in ("inputs", "outputs"):
        ports, theirs = getattr(shape, kind), getattr(first, kind)
        if [*map(_kind_of, ports)] != [*map(_kind_of, theirs)]:
            raise PackError(f"{path}: {kind}: not those of {MANIFEST} in another shape")
    shapes = [
        tuple(port.shape for port in manifest.required_inputs) for manifest in (shape, *others)
    ]
    if shapes[0] in shapes[1:]:
        raise PackError(f"{path}: inputs: another shape of the pack has the same")


def _kind_of(port: Port) -> tuple[object, ...]:
    return port.name, port.dtype, port.default, len(port.shape)


def check_manifests(manifests: Mapping[Path, Manifest]) -> None:
    """Check the shapes of a pack, the largest first, by the files that they are in.

    Raises:
        PackError: something in one cannot be, or they are not of one pack; the message names the field.
    """
    path, manifest = next(iter(manifests.items()))
    spans = _FileSpans(manifest.files["weights.bin"].n_bytes)
    for index, (file, shape) in enumerate(manifests.items()):
        if index:
            _check_shape(file, shape, list(manifests.values())[:index])
        spans.check(file, shape)
    spans.check_end(path)
    for file, shape in manifests.items():
        _check_manifest(file, shape)


def _check_manifest(path: Path, manifest: Manifest) -> None:
    """Check values, pieces and recipes of the manifest in ``path``, whose spans were checked."""
    _check_values(path, manifest)
    _check_ports(path, manifest)
    _check_pieces(path, manifest)
    _check_alternatives(path, manifest)
    check_rows(path, manifest)
    check_bottlenecks(path, manifest)
    check_programs(path, manifest)
    check_quantised(path, manifest)
    _check_lookups(path, manifest)
    _check_loose_order(path, manifest)
    _check_recipes(path, manifest)


def _check_values(path: Path, manifest: Manifest) -> None:
    values = manifest.values
    ends: set[int] = set()  # values whose parents were followed to the last
    for number, value in enumerate(values):
        where = f"{path}: values.{number}"
        parent = value.parent
        if parent is not None and parent < len(values):
            room = values[parent].n_bytes
            if value.offset + value.n_bytes > room:
                raise PackError(f"{where}: does not fit in its parent ({room} bytes)")
            if value.is_loose or values[parent].is_loose:
                raise PackError(f"{where}.parent: {parent}: a size that no one knows lies nowhere")
        seen = {number}
        while parent is not None and parent not in ends:
            if parent >= len(values) or parent in seen:
                raise PackError(f"{where}.parent: {parent} is out of range or leads back")
            seen.add(parent)
            parent = values[parent].parent
        ends |= seen


def _check_ports(path: Path, manifest: Manifest) -> None:
    values = manifest.values
    for kind, ports in (("inputs", manifest.inputs), ("outputs", manifest.outputs)):
        for number, port in enumerate(ports):
            held = values[port.value] if port.value < len(values) else None
            if held is None or (held.dtype, held.shape) != (port.dtype, port.shape):
                raise PackError(f"{path}: {kind}.{number}.value: {port.value} does not hold it")
    for number, port in enumerate(manifest.inputs):
        if UNKNOWN in port.shape:
            raise PackError(f"{path}: inputs.{number}.shape: {list(port.shape)} is not known")
        try:
            port.default_array()
        except ValueError as exc:
            raise PackError(f"{path}: inputs.{number}.default: {exc}") from exc


def _check_pieces(path: Path, manifest: Manifest) -> None:
    last_span = -1
    unused = {number for number, span in enumerate(manifest.spans) if not span.resident}
    for number, piece in enumerate(manifest.pieces):
        where = f"{path}: pieces.{number}"
        if piece.graph >= len(manifest.graphs):
            raise PackError(f"{where}.graph: {piece.graph} is out of range")
        if piece.span is not None:
            if piece.span >= len(manifest.spans) or piece.span <= last_span:
                raise PackError(f"{where}.span: {piece.span} is out of range or out of order")
            if manifest.spans[piece.span].resident:
                raise PackError(f"{where}.span: {piece.span} is resident, not streamed")
            last_span = piece.span
            unused.remove(piece.span)
        if not piece.outputs:
            raise PackError(f"{where}.outputs: none")
        _check_operands(where, manifest, piece)
        if piece.page_checksums is not None:
            _check_table(f"{where}.page_checksums", manifest, piece, piece.page_checksums)
    if unused:
        raise PackError(f"{path}: spans.{min(unused)}: no piece streams it")
    for number, layer in enumerate(manifest.layers):
        if not layer.first_piece < layer.end_piece <= len(manifest.pieces):
            raise PackError(f"{path}: layers.{number}: its pieces are out of range")


def _check_operands(where: str, manifest: Manifest, piece: Piece) -> None:
    for operand in (*piece.inputs, *piece.outputs):
        _check_operand(where, manifest, piece.span, operand)
        if operand.is_loose:
            _check_loose(where, manifest, piece, operand)
        if operand.kind == "span" and piece.resident is not None:
            raise PackError(
                f"{where}: reads span {operand.index}; a resident piece has its weights"
            )
    if piece.resident is not None and piece.span is not None:
        raise PackError(f"{where}.span: {piece.span}: a resident piece streams nothing")
    if any(operand.kind == "span" for operand in piece.outputs):
        raise PackError(f"{where}.outputs: a piece cannot write to weights")


def _check_table(where: str, manifest: Manifest, piece: Piece, checksums: Operand) -> None:
    """Check that ``piece`` can only be a Gather of rows of a table, whose pages have ``checksums``."""
    tables = [operand for operand in piece.inputs if operand.kind == "span"]
    values = [operand for operand in piece.inputs if operand.kind == "value"]
    if (len(tables), len(values), len(piece.outputs)) != (1, 1, 1) or piece.span is None:
        raise PackError(f"{where}: of a piece that is no Gather of rows of its span")
    (table,), (indices,), (output,) = tables, values, piece.outputs
    span = manifest.spans[piece.span]
    if table.index != piece.span or table.offset or not _is_plain(span):
        raise PackError(f"{where}: the table does not lie at the beginning of span {piece.span}")
    shape = (*indices.shape, *table.shape[1:])
    if not table.shape or indices.dtype not in INDEX_TYPES or indices.is_loose:
        raise PackError(f"{where}: {indices.dtype}{list(indices.shape)} say no rows of a table")
    if (output.dtype, output.shape) != (table.dtype, shape):
        raise PackError(f"{where}: {list(output.shape)} are not the rows, which are {list(shape)}")
    _check_operand(where, manifest, None, checksums)
    pages = span.length // PAGE_BYTES
    if (checksums.kind, checksums.dtype, checksums.shape) != ("span", "uint64", (pages,)):
        raise PackError(f"{where}: not {pages} checksums")


def _check_lookups(path: Path, manifest: Manifest) -> None:
    """Check that what reads rows of a table is nothing else, and no segment of what runs otherwise."""
    ranges = (
        *(("alternatives", item.first_piece, item.end_piece) for item in manifest.alternatives),
        *(("row_values", item.first_piece, item.end_piece) for item in manifest.row_values),
        *(("row_operators", item.first_piece, item.end_piece) for item in manifest.row_operators),
        *(("bottlenecks", item.first_piece, item.end_piece) for item in manifest.bottlenecks),
    )
    for index, piece in enumerate(manifest.pieces):
        if piece.page_checksums is None:
            continue
        field = f"{path}: pieces.{index}.page_checksums"
        if piece.resident or piece.elementwise or piece.quantised is not None:
            raise PackError(f"{field}: of a piece that is something else")
        for kind, first, end in ranges:
            if first <= index < end:
                raise PackError(f"{field}: of a piece in {kind}")


def _is_plain(span: Span) -> bool:
    """Return whether the bytes of ``span`` lie in the file as they are in memory."""
    plain = StoredPart(encoding="bytes", offset=0, length=span.length)
    return span.stored is None or span.stored.parts == (plain,)


def _check_loose(where: str, manifest: Manifest, piece: Piece, operand: Operand) -> None:
    """Check that a tensor without a place passes whole to or from a resident piece."""
    if piece.resident is None:
        raise PackError(f"{where}: {operand.kind} {operand.index}: only a resident piece takes it")
    held = manifest.values[operand.index] if operand.kind == "value" else None
    if held is None or operand.offset or (held.dtype, held.shape) != (operand.dtype, operand.shape):
        raise PackError(f"{where}: {operand.kind} {operand.index} does not hold it")


def _check_loose_order(path: Path, manifest: Manifest) -> None:
    """Check that what has no place in the arena is made before it is read or answered."""
    made = {port.value for port in manifest.inputs}
    for number, piece in enumerate(manifest.pieces):
        for operand in piece.inputs:
            if operand.is_loose and operand.index not in made:
                raise PackError(
                    f"{path}: pieces.{number}: reads value {operand.index} before it is made"
                )
        made.update(operand.index for operand in piece.outputs if operand.kind == "value")
    for number, port in enumerate(manifest.outputs):
        if port.is_loose and port.value not in made:
            raise PackError(f"{path}: outputs.{number}.value: {port.value} is never made")


def _check_operand(where: str, manifest: Manifest, own: int | None, operand: Operand) -> None:
    table = manifest.values if operand.kind == "value" else manifest.spans
    if operand.index >= len(table):
        raise PackError(f"{where}: {operand.kind} {operand.index} is out of range")
    if operand.kind == "value":
        room = manifest.values[operand.index].n_bytes
    else:
        span = manifest.spans[operand.index]
        room = span.length
        if not operand.n_bytes:  # ONNX Runtime's blocked convolution never ends on such weights
            raise PackError(f"{where}: nothing of span {operand.index}: {list(operand.shape)}")
        if operand.index != own and not span.resident:
            raise PackError(f"{where}: reads span {operand.index}, which is not its own")
    if operand.offset + operand.n_bytes > room:
        raise PackError(
            f"{where}: bytes [{operand.offset}, +{operand.n_bytes}) are outside "
            f"{operand.kind} {operand.index} ({room} bytes)"
        )


def _tokenizer_fault(text: TextInput, manifest: Manifest) -> str | None:
    """Return why a tokenizer cannot take as little as ``text`` says; None: it can."""
    file_bytes = manifest.files[TOKENIZER].n_bytes
    if text.memory_bytes >= file_bytes:
        return None
    return f"text.memory_bytes: {text.memory_bytes}, and its file has {file_bytes}"


def _check_recipes(path: Path, manifest: Manifest) -> None:
    inputs = [(port.dtype, port.shape) for port in manifest.required_inputs]
    if manifest.preprocess is not None and inputs != [("float32", manifest.preprocess.shape)]:
        raise PackError(f"{path}: preprocess: its tensor is not the input")
    outputs = {port.name: (port.dtype, port.shape) for port in manifest.outputs}
    detection, segmentation = manifest.detection, manifest.segmentation
    embedding, text, sound = manifest.embedding, manifest.text, manifest.sound
    required = {port.name: port for port in manifest.required_inputs}
    for fault in (
        detection and head_fault(detection, outputs),
        segmentation and segmentation_fault(segmentation, outputs),
        manifest.depth and depth_fault(manifest.depth, outputs),
        embedding and embedding_fault(embedding, outputs),
        text and text_fault(text, required),
        sound and sound_fault(sound, required),
        text and _tokenizer_fault(text, manifest),
    ):
        if fault is not None:
            raise PackError(f"{path}: {fault}")
    if manifest.classification is None:
        return
    scores = {port.name: math.prod(port.shape) for port in manifest.outputs if not port.is_loose}
    count = scores.get(manifest.classification.output)
    if count is None:
        raise PackError(f"{path}: classification.output: no such output")
    if len(manifest.classification.labels) not in (0, count):
        raise PackError(f"{path}: classification.labels: not one for each of {count} scores")
