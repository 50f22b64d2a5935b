"""The file that peers run: what the pack was compiled from, which is what users would have."""

import hashlib
from pathlib import Path

from models.errors import ModelError
from models.packs.pack import Pack
from pipeline.peers import ONNXRUNTIME


class SourceError(ModelError):
    """The file given as a pack's source is another one, or cannot be read."""


def find_source(pack: Pack, given: Path | None = None) -> Path | None:
    """Return the ONNX file that ``pack`` was compiled from: ``given``, or where it usually lies.

    The manifest has its name and checksum. Without ``given`` it is sought in the current folder, in that
    of the pack and in the three above.

    Raises:
        SourceError: ``given`` is another file.
    """
    if given is not None:
        try:
            same = _is_source(pack, given)
        except OSError as exc:
            raise SourceError(f"{given}: {exc.strerror or exc}") from exc
        if not same:
            raise SourceError(
                f"{given}: not what {pack.folder} was compiled from ({pack.manifest.source.file})"
            )
        return given
    folder = pack.folder.resolve()
    for place in (Path.cwd(), folder, *list(folder.parents)[:3]):
        path = place / pack.manifest.source.file
        try:
            if path.is_file() and _is_source(pack, path):
                return path
        except OSError:
            continue
    return None


def model_of(pack: Pack, source: Path | None, peer: str) -> tuple[Path | None, str]:
    """Return the file that ``peer`` runs, None where it can run none, and what to say about it."""
    if source is not None:
        return source, ""
    missing = f"{pack.manifest.source.file}, the source of the pack, was not found (--source)"
    if peer == ONNXRUNTIME and not pack.manifest.expands:
        return pack.model_path, f"{peer} runs the pack's own model.onnx: {missing}"
    return None, f"{peer} is left out: {missing}"


def _is_source(pack: Pack, path: Path) -> bool:
    source = pack.manifest.source
    if path.stat().st_size != source.n_bytes:
        return False
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest() == source.sha256
