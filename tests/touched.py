"""The tests that a change touches, for pytest: ``python -m tests.touched`` prints them, one a line.

The change is what lies between HEAD and, the first of these that there is: LAYERSTREAM_BASE; the commit at
which HEAD left the branch of its origin; the last commit a day before HEAD; nothing at all. A clone of what
was submitted has no older branch, and a submission may be many commits: hence the day.
"""

import os
import subprocess
from collections.abc import Collection
from pathlib import Path, PurePosixPath

from tests.documents import ROOT
from tests.shown import SHOWN

OF_A_PAGE = "tests/test_documents_run.py::test_a_page_runs_as_it_is_printed"
DAY_SECONDS = 24 * 60 * 60


def touched(changed: Collection[str]) -> list[str]:
    """Return the folders with tests of the files ``changed``, and the tests of pages among these."""
    parts = [PurePosixPath(path).parts for path in changed]
    names = {part[1] if part[0] == "tests" and len(part) > 1 else part[0] for part in parts}
    folders = [f"tests/{name}" for name in sorted(names) if (ROOT / "tests" / name).is_dir()]
    return folders + [f"{OF_A_PAGE}[{shown.page}]" for shown in SHOWN if shown.page in changed]


def changed_files(root: Path = ROOT) -> list[str]:
    """Return the files that the change at HEAD adds, changes or removes.

    Raises:
        subprocess.CalledProcessError: ``root`` is no repository, or has no commit.
    """
    return _git(root, "diff", "--name-only", "--no-renames", _base(root), "HEAD").splitlines()


def _base(root: Path) -> str:
    if base := os.environ.get("LAYERSTREAM_BASE"):
        return base
    head = _git(root, "rev-parse", "HEAD")
    if _git(root, "rev-parse", "--verify", "--quiet", "origin/HEAD", check=False):
        base = _git(root, "merge-base", "HEAD", "origin/HEAD", check=False)
        if base not in {"", head}:
            return base
    before = int(_git(root, "log", "-1", "--format=%ct", "HEAD")) - DAY_SECONDS
    base = _git(root, "rev-list", "-1", "--first-parent", f"--before={before}", "HEAD")
    return base or _git(root, "hash-object", "-t", "tree", os.devnull)


def _git(root: Path, *arguments: str, check: bool = True) -> str:
    command = ["git", "-C", str(root), *arguments]
    return subprocess.run(command, stdout=subprocess.PIPE, text=True, check=check).stdout.strip()


if __name__ == "__main__":
    for name in touched(changed_files()):
        print(name)
