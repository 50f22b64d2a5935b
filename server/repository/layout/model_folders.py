"""Which folders of a repository are models: those with versions in them, whatever these hold."""

from pathlib import Path

from models.packs.pack import versions
from server.errors import NotFoundError
from server.repository.layout.presence import is_folder


def model_names(root: Path) -> list[str]:
    """Return the models in ``root``, by name.

    Raises:
        NotFoundError: there is no such folder.
    """
    if not root.is_dir():
        raise NotFoundError(f"repository {root}: no such folder")
    found = (path for path in root.iterdir() if is_folder(path) and path.name[0] != ".")
    return sorted(path.name for path in found if _has_versions(path))


def _has_versions(folder: Path) -> bool:
    try:
        return bool(versions(folder))
    except OSError:  # of others: a disk has lost+found, where nobody may look
        return False
