"""What a manifest says of weights.bin must be possible: spans, and how they are stored in it."""

from pathlib import Path

from models.errors import PackError
from models.packs.manifest import Manifest
from models.packs.records.pieces import TENSOR_ALIGNMENT
from models.packs.records.spans import SPAN_ALIGNMENT, Span, Stored
from models.packs.storing import least_length, part_fault


def check_spans(path: Path, manifest: Manifest) -> None:
    """Check the spans of the manifest in ``path``.

    Raises:
        PackError: something in them cannot be; the message names the field.
    """
    size = manifest.files["weights.bin"].n_bytes
    end = file_end = 0
    written: dict[int, Span] = {}
    for number, span in enumerate(manifest.spans):
        where = f"{path}: spans.{number}"
        _check_follows(where, span.offset, span.length, end)
        if span.resident and number and not manifest.spans[number - 1].resident:
            raise PackError(f"{where}: resident, after one that is not")
        end = span.offset + span.length
        if span.stored is not None and span.at is not None:
            raise PackError(f"{where}.at: {span.at}, of a span that is stored")
        _check_in_file(where, span, written.setdefault(span.file_offset, span), file_end)
        if span.stored is not None:
            _check_stored(f"{where}.stored", span, span.stored)
        file_end = max(file_end, span.file_end)
        if file_end > size:
            raise PackError(
                f"{where}: ends at {file_end}, out of range of weights.bin ({size} bytes)"
            )
    if file_end != size:
        raise PackError(
            f"{path}: spans: the last one ends at {file_end}, not at the end of weights.bin"
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
