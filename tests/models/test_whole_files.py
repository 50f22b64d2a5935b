"""Files that are there as a whole or not at all."""

import errno
import fcntl
import os
import stat
import subprocess
import sys
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, BinaryIO

import pytest

from models.whole_files import remove_partial_files, users_file, whole_file

Opened = Callable[[Path], AbstractContextManager[BinaryIO]]


def _interrupted(opened: Opened, path: Path) -> None:
    with opened(path) as file:
        file.write(b"some")
        raise KeyboardInterrupt


@pytest.mark.parametrize("opened", [whole_file, users_file])
def test_what_fails_leaves_what_was_there(opened: Opened, tmp_path: Path) -> None:
    old, new = tmp_path / "old", tmp_path / "new"
    old.write_text("old")
    old.chmod(0o600)
    for path in (old, new):
        with pytest.raises(KeyboardInterrupt):
            _interrupted(opened, path)
    assert {path.name: path.read_text() for path in tmp_path.iterdir()} == {"old": "old"}
    with opened(old) as file:
        file.write(b"all")
        assert old.read_text() == "old"
    assert old.read_text() == "all"
    assert stat.S_IMODE(old.stat().st_mode) == 0o600
    assert list(tmp_path.iterdir()) == [old]


def test_a_users_link_is_followed_and_another_replaced(tmp_path: Path) -> None:
    target, link = tmp_path / "target", tmp_path / "link"
    target.write_text("old")
    link.symlink_to(target)
    with users_file(link) as file:
        file.write(b"new")
    assert link.is_symlink()
    assert target.read_text() == "new"
    with whole_file(link) as file:
        file.write(b"own")
    assert not link.is_symlink()
    assert target.read_text() == "new"


def test_a_users_device_is_written_as_it_is() -> None:
    with users_file(Path(os.devnull)) as file:
        file.write(b"x")
    assert not Path(os.devnull).is_file()


@pytest.mark.parametrize("name", ["/dev/stdout", "/dev/stderr", "link", "log"])
def test_standard_output_and_error_go_on_from_where_they_are(tmp_path: Path, name: str) -> None:
    """As ``command --output /dev/stdout >> log``: nothing that is in the log before or after gets lost."""
    log, own = tmp_path / "log", tmp_path / name
    log.write_text("of others\n")
    (tmp_path / "link").symlink_to("/dev/stdout")
    program = """
import sys
from pathlib import Path
from models.whole_files import users_file
print("before")
with users_file(Path(sys.argv[1])) as file:
    file.write(b"whole\\n")
print("after")
"""
    with log.open("a") as file:
        subprocess.run([sys.executable, "-c", program, own], stdout=file, stderr=file, check=True)
    assert log.read_text() == "of others\nbefore\nwhole\nafter\n"


@pytest.mark.skipif(not Path("/proc/self/comm").exists(), reason="Linux has it")
def test_a_file_whose_folder_takes_no_others_is_written_where_it_is() -> None:
    own = Path("/proc/self/comm")  # a regular file that may be written
    before = own.read_text()
    with users_file(own) as file:
        file.write(b"here")
    assert own.read_text() == "here\n"
    own.write_text(before)


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write any file")
def test_a_file_for_reading_only_is_not_replaced(tmp_path: Path) -> None:
    own = tmp_path / "own"
    own.write_text("old")
    own.chmod(0o444)
    with pytest.raises(PermissionError), users_file(own) as file:
        file.write(b"new")
    assert {path.name: path.read_text() for path in tmp_path.iterdir()} == {"own": "old"}


def test_a_file_that_cannot_be_renamed_over_is_written_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As one that is mounted by itself, which only the kernel can see has no name of its own."""
    own = tmp_path / "own"
    own.write_text("what was there before")

    def busy(self: Path, target: Path) -> Path:
        raise OSError(errno.EBUSY, os.strerror(errno.EBUSY), str(target))

    monkeypatch.setattr(Path, "replace", busy)
    with whole_file(own) as file:
        file.write(b"new")
    assert {path.name: path.read_text() for path in tmp_path.iterdir()} == {"own": "new"}
    with pytest.raises(OSError, match="busy"), whole_file(tmp_path / "other") as file:
        file.write(b"new")


def test_a_partial_file_that_nobody_writes_any_more_is_removed(tmp_path: Path) -> None:
    left = tmp_path / f".{'0' * 16}.part"
    retained = [tmp_path / "own.part", tmp_path / ".part", tmp_path / "file"]
    for path in (left, *retained):
        path.touch()
    with whole_file(tmp_path / "file") as file:
        assert remove_partial_files(tmp_path) == [left]
        file.write(b"whole")
    assert (tmp_path / "file").read_bytes() == b"whole"
    assert sorted(tmp_path.iterdir()) == sorted(retained)
    assert remove_partial_files(tmp_path / "nowhere") == []


def test_a_partial_file_that_is_removed_before_it_is_locked_is_written_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    flock = fcntl.flock

    def late(file: Any, operation: int) -> None:
        monkeypatch.setattr("models.whole_files.fcntl.flock", flock)
        assert len(remove_partial_files(tmp_path)) == 1
        flock(file, operation)

    monkeypatch.setattr("models.whole_files.fcntl.flock", late)
    with whole_file(tmp_path / "file") as file:
        file.write(b"whole")
    assert [path.read_bytes() for path in tmp_path.iterdir()] == [b"whole"]
