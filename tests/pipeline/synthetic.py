"""Networks made of numbers alone: spans of given lengths and pieces that use them."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from hypothesis import strategies as st

from models.packs.folders import FORMAT_VERSION
from models.packs.manifest import Manifest
from models.packs.pack import Pack
from models.packs.records.pieces import GraphRange, Operand, Piece, Value
from models.packs.records.ports import SourceFile
from models.packs.records.spans import Span, Stored, StoredPart
from models.packs.target import host_target
from pipeline.program.program import Program
from pipeline.program.sessions import SESSION_BYTES

PAGE = 4096


def program_of(manifest: Manifest) -> Program:
    """Return the network of ``manifest``, whose graphs are in no file and join each other."""
    numbers = range(len(manifest.graphs))
    pack = Pack(Path(), manifest, tuple(b"" for _ in numbers))
    return replace(Program.as_compiled(pack), joins=dict.fromkeys(numbers, "keeping"))


def program(pages: Sequence[int], uses_span: Sequence[bool], resident_pages: int = 0) -> Program:
    """Return a network with one span a ``True`` of ``uses_span``; lengths in pages."""
    return program_of(record(pages, uses_span, resident_pages))


def record(pages: Sequence[int], uses_span: Sequence[bool], resident_pages: int = 0) -> Manifest:
    """Return the manifest of such a network."""
    spans: list[Span] = []
    offset = 0
    lengths = iter(pages)
    pieces = []
    if resident_pages:
        spans.append(_span(0, resident_pages * PAGE, resident=True))
        offset = resident_pages * PAGE
    for uses in uses_span:
        number = None
        if uses:
            length = next(lengths) * PAGE
            number = len(spans)
            spans.append(_span(offset, length))
            offset += length
        pieces.append(Piece(graph=0, span=number, inputs=(), outputs=()))
    return Manifest(
        format_version=FORMAT_VERSION,
        name="synthetic",
        target=host_target(),
        source=SourceFile(file="none", n_bytes=0, sha256=""),
        files={},
        spans=tuple(spans),
        graphs=(GraphRange(offset=0, length=1, session_bytes=SESSION_BYTES),),
        values=(),
        pieces=tuple(pieces),
        layers=(),
        inputs=(),
        outputs=(),
        parameters=0,
    )


def _span(offset: int, length: int, *, resident: bool = False) -> Span:
    return Span(offset=offset, length=length, checksum="0" * 16, resident=resident)


def stored(source: Program, pages: Sequence[int]) -> Program:
    """Return ``source`` with spans that take up to so many ``pages`` in the file, each at least one."""
    spans, offset = [], 0
    for span, most in zip(source.spans, pages, strict=True):
        length = min(span.length, most * PAGE)
        part = StoredPart(encoding="int8", offset=0, length=span.length, channels=1)
        spans.append(replace(span, stored=Stored(offset=offset, length=length, parts=(part,))))
        offset += length
    return replace(source, spans=tuple(spans))


@st.composite
def programs(draw: st.DrawFn, max_pieces: int = 24) -> Program:
    """Draw a program with random span lengths and pieces without weights in between."""
    uses = draw(st.lists(st.booleans(), min_size=1, max_size=max_pieces))
    count = sum(uses)
    pages = draw(st.lists(st.integers(1, 9), min_size=count, max_size=count))
    made = program(pages, uses, draw(st.integers(0, 3)))
    if draw(st.booleans()):
        return made
    return stored(
        made, draw(st.lists(st.integers(1, 9), min_size=len(made.spans), max_size=len(made.spans)))
    )


def chain(sizes: Sequence[int], reads: Sequence[Sequence[int]]) -> Program:
    """Return a program of values alone: piece i reads values ``reads[i]`` and writes value i + 1."""
    values = tuple(
        Value(name=f"v{number}", dtype="uint8", shape=(size,)) for number, size in enumerate(sizes)
    )

    def operand(number: int) -> Operand:
        return Operand(kind="value", index=number, dtype="uint8", shape=(sizes[number],))

    pieces = tuple(
        Piece(
            graph=0,
            span=None,
            inputs=tuple(operand(number) for number in inputs),
            outputs=(operand(step + 1),),
        )
        for step, inputs in enumerate(reads)
    )
    return program_of(replace(record([], []), values=values, pieces=pieces))
