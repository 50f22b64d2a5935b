"""Looks at a repository: names, sizes and times of the files of all its packs; none is opened."""

from collections.abc import Collection, Iterator
from pathlib import Path

from models.packs.pack import versions
from server.errors import NotFoundError
from server.repository.layout.model_folders import model_names
from server.repository.layout.seen import PACK_FILES, look
from server.repository.polling.changes import Sight


def look_at_all(root: Path, chosen: Collection[str]) -> Sight | None:
    """Return what is seen of the models in ``root``; ``chosen``: only these, none: all; blocks.

    None: the repository itself is not there now, as while it is mounted again: that says nothing of models.
    """
    try:
        names = model_names(root)
    except (NotFoundError, OSError):
        return None
    return {name: look(_files(root / name)) for name in names if not chosen or name in chosen}


def _files(folder: Path) -> Iterator[Path]:
    """Yield the files of a model that matter: of its versions, and beside them."""
    try:
        yield from (path for path in sorted(folder.iterdir()) if path.is_file())
        found = versions(folder)
    except OSError:  # it went meanwhile
        return
    for version in found:
        yield from (version / name for name in PACK_FILES)
