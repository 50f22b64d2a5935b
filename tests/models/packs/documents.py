"""The manifest of a pack as a document, to be changed: its checksum is right whatever it says."""

import json
from pathlib import Path
from typing import Any

from models.packs.manifest import with_checksum, without_checksum

Document = dict[str, Any]


def document_of(text: bytes) -> Document:
    """Return the fields of the manifest ``text``, without its checksum."""
    document: Document = json.loads(without_checksum(text)[0])
    return document


def text_of(document: Document) -> bytes:
    """Return a manifest that says what ``document`` does."""
    return with_checksum(b"{\n" + json.dumps(document).encode()[1:])


def read_document(folder: Path) -> Document:
    """Return what the manifest in ``folder`` says, without its checksum."""
    return document_of((folder / "manifest.json").read_bytes())


def write_document(folder: Path, document: Document) -> None:
    """Let ``document`` be the manifest in ``folder``."""
    (folder / "manifest.json").write_bytes(text_of(document))
