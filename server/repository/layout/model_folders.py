"""Which folders of a repository are models: those with versions in them, whatever these hold.

A folder that may not be looked into counts as one where its name could be a model's: that it cannot be
served is said, where a model that is silently missing would be looked for in vain.
"""

from pathlib import Path

from models.packs.names import is_model_name
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
    return sorted(path.name for path in root.iterdir() if is_model(root, path.name))


def is_model(root: Path, name: str) -> bool:
    """Return whether there is a model of that name in ``root``; looks at its folder alone, and blocks."""
    folder = folder_of(root, name)
    return folder is not None and _has_versions(folder)


def folder_of(root: Path, name: str) -> Path | None:
    """Return the folder of ``root`` with that name; None: there is none, or it is hidden."""
    if not name or name[0] == "." or "/" in name or "\0" in name:
        return None
    return root / name if is_folder(root / name) else None


def _has_versions(folder: Path) -> bool:
    try:
        return bool(versions(folder))
    except OSError:  # a disk has lost+found, too
        return is_model_name(folder.name)
