"""Files that are there as a whole or not at all."""

import os
import stat
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import BinaryIO

import pytest

from models.whole_files import users_file, whole_file

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
