"""Whether files are still those that were looked at: device, inode, size and time of change of each."""

from collections.abc import Iterable
from pathlib import Path

from models.packs.pack import FILES

#: What makes a pack what it is. Plans that were found are not among them: the service writes them itself.
PACK_FILES = ("manifest.json", *FILES, "profile.json")

#: Of each file that is there: its path, device, inode, size, nanoseconds of its last change.
Seen = tuple[tuple[str, int, int, int, int], ...]


def look(files: Iterable[Path]) -> Seen:
    """Return what is seen of ``files``; one that is not there, or that nobody may look at, is left out."""
    found = []
    for file in files:
        try:
            state = file.stat()
        except OSError:
            continue
        found.append((str(file), state.st_dev, state.st_ino, state.st_size, state.st_mtime_ns))
    return tuple(found)


def look_at_pack(folder: Path) -> Seen:
    """Return what is seen of the pack in ``folder``, a version's."""
    return look(folder / name for name in PACK_FILES)


def is_still(seen: Seen, file: Path) -> bool:
    """Return whether ``file`` is the one that was ``seen``."""
    now = look([file])
    return bool(now) and now[0] in seen
