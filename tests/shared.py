"""Test inputs that are not part of the repository: a folder ``shared`` in it or beside it."""

from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]


def shared(*parts: str) -> Path:
    """Return the file ``shared/PARTS``; where there is none, the test that asks is skipped."""
    for folder in (ROOT / "shared", ROOT.parent / "shared"):
        path = folder.joinpath(*parts)
        if path.exists():
            return path
    pytest.skip(f"no shared/{'/'.join(parts)} here")
