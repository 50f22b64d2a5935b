"""Files that are there as a whole or not at all."""

import os
import tempfile
from pathlib import Path


def write_atomically(path: Path, text: str) -> None:
    """Write ``path`` all at once: whoever reads it meanwhile has the old one.

    Raises:
        OSError: it cannot be written; the old one stays.
    """
    descriptor, name = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
    try:
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        os.chmod(name, 0o644)  # noqa: PTH101
        os.replace(name, path)  # noqa: PTH105
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise


def check_writable(folder: Path) -> None:
    """Do what ``write_atomically`` does first, for those who write only after a long while.

    Raises:
        OSError: no file can be made in ``folder``.
    """
    with tempfile.TemporaryFile(dir=folder):
        pass
