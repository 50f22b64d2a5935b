"""Folders stay small enough to be seen at a glance. Their order and circles are import-linter's to find."""

from collections import Counter
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
FOLDERS = ("models", "loader", "pipeline", "server", "benchmarks", "tests", "tools", "deploy")
SOURCES = {".py", ".cu", ".cuh", ".sh"}
MOST_FILES = 17


def test_no_folder_holds_more_files_than_a_newcomer_reads() -> None:
    count = Counter(
        path.parent.relative_to(ROOT).as_posix()
        for folder in FOLDERS
        for path in (ROOT / folder).rglob("*")
        if path.suffix in SOURCES and path.name != "__init__.py"
    )
    assert len(count) > 50  # or nothing was looked at
    assert {folder: files for folder, files in count.items() if files > MOST_FILES} == {}
