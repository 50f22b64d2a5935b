"""What a manifest says of joined chunks must be possible (docs/reference/pack-manifest.md, "alternatives").

After these checks joining cannot fail, and a joined piece touches no byte that its chunks do not touch.
"""

import itertools
from pathlib import Path

from models.errors import PackError
from models.packs.joining import channel_axis
from models.packs.manifest import Manifest
from models.packs.records.pieces import Alternative, JoinedPieces, Operand, Piece


def check_alternatives(path: Path, manifest: Manifest) -> None:
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
