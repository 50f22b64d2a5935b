"""A pack appears whole or not at all: full disks, kills at every step, what they leave."""

import contextlib
import errno
import fcntl
import importlib
import itertools
import multiprocessing
import os
import shutil
import signal
import subprocess
import sys
from collections import namedtuple
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from models.atomic_folders import PREFIX, locked_folder, put_in_place
from models.compiler import CompileOptions, compile_onnx
from models.compiler.passes.run import run as run_passes
from models.errors import CompileError, PackError
from models.packs.building import building
from models.packs.folders import clear_repository, find_pack, versions
from models.packs.manifest import Manifest
from models.packs.pack import Pack, open_pack
from models.runtime.sessions import SessionError
from tests.examples import over
from tests.models.nets import CHUNK_BYTES, residual, written
from tests.models.refusal import refuses

# The package has a function of that name.
compile_module = importlib.import_module("models.compiler.compile")
write_module = importlib.import_module("models.packs.building")

OPTIONS = CompileOptions(chunk_bytes=CHUNK_BYTES)
FORCED = CompileOptions(chunk_bytes=CHUNK_BYTES, force=True)
STEPS = ("read", "optimise", "cut", "write", "check")


def content(pack: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in pack.iterdir()}


# No space left


@contextlib.contextmanager
def small_disk(folder: Path, n_bytes: int) -> Iterator[Path]:
    """Mount a file system of ``n_bytes`` on ``folder``; skip where that is not allowed."""
    folder.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", f"size={n_bytes}", "tmpfs", str(folder)]
    if shutil.which("mount") is None or os.geteuid() != 0:
        pytest.skip("mounting a small file system needs root")
    mounted = subprocess.run(command, capture_output=True, text=True, check=False)
    if mounted.returncode:
        pytest.skip(f"a small file system cannot be mounted: {mounted.stderr.strip()}")
    try:
        yield folder
    finally:
        subprocess.run(["umount", "--lazy", str(folder)], check=True)


@pytest.mark.disk
@pytest.mark.parametrize("tenths", [0, 5, 13, 19])
def test_full_disk_leaves_nothing(
    tenths: int, tiny_onnx: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The disk is full at another step each time: it has room for ``tenths`` of ten models."""
    size = tiny_onnx.stat().st_size * tenths // 10
    with small_disk(tmp_path / "disk", max(size, 1 << 14)) as disk:
        monkeypatch.setattr("models.compiler.sources.SourceModel.check_space", lambda *_: None)
        with refuses(CompileError, disk / "repository" / "m", "No space left"):
            compile_onnx(tiny_onnx, disk / "repository" / "m", OPTIONS)
        assert not (disk / "repository").exists()


@pytest.mark.disk
def test_full_disk_is_foreseen_and_keeps_what_was_there(tiny_onnx: Path, tmp_path: Path) -> None:
    model_bytes = tiny_onnx.stat().st_size
    with small_disk(tmp_path / "disk", 5 * model_bytes) as disk:
        pack = compile_onnx(tiny_onnx, disk / "m", OPTIONS)
        before = content(pack)
        (disk / "filler").write_bytes(bytes(model_bytes * 5 // 2))
        with refuses(CompileError, disk / "m", "no space to compile"):
            compile_onnx(tiny_onnx, disk / "m", FORCED)
        assert content(pack) == before
        assert list(pack.parent.iterdir()) == [pack]


def test_too_little_space_is_refused_before_any_work(
    tiny_onnx: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    usage = namedtuple("usage", "total used free")
    steps: list[str] = []
    free = tiny_onnx.stat().st_size
    monkeypatch.setattr(shutil, "disk_usage", lambda _path: usage(0, 0, free))
    with refuses(CompileError, tmp_path / "m", "no space", f"{free / 2**20:.1f} MiB are free"):
        compile_onnx(tiny_onnx, tmp_path / "m", OPTIONS, lambda step, detail="": steps.append(step))
    assert steps == ["read"]
    assert not (tmp_path / "m").exists()


def test_a_disk_that_is_full_for_onnx_runtime_is_no_fault_of_the_file(
    tiny_onnx: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It has no error of its own for that: the caller gets the disk's."""

    class Full:
        @staticmethod
        def disk_usage(_: Path) -> Any:
            return SimpleNamespace(free=0)

    def refuse(*_: object) -> None:
        raise SessionError("ONNX Runtime says something")

    monkeypatch.setattr("models.compiler.optimising.by_onnxruntime.shutil", Full)
    monkeypatch.setattr("models.compiler.optimising.by_onnxruntime.open_session", refuse)
    with pytest.raises(CompileError, match="No space left on device") as caught:
        compile_onnx(tiny_onnx, tmp_path / "m", OPTIONS)
    assert isinstance(caught.value.__cause__, OSError)
    assert caught.value.__cause__.errno == errno.ENOSPC


@pytest.mark.parametrize(
    ("function", "existing"),
    [*((name, True) for name in ("fsync", "write_bytes", "rename", "mkdir")), ("fsync", False)],
)
def test_write_that_fails_leaves_nothing(
    function: str,
    existing: bool,
    tiny_onnx: Path,
    tiny_pack: Pack,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    destination = tmp_path / "repository" / "m"
    before = None
    if existing:
        before = content(Path(shutil.copytree(tiny_pack.folder, destination / "1")))

    def full(*_args: Any, **_kwargs: Any) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(destination / "file"))

    with monkeypatch.context() as patch:
        patch.setattr(os if function == "fsync" else Path, function, full)
        options = CompileOptions(version=2) if function == "rename" else FORCED
        with refuses(CompileError, destination, "No space left on device"):
            compile_onnx(tiny_onnx, destination, options)
    if before is None:
        assert not destination.exists()
    else:
        assert content(destination / "1") == before
        assert [path.name for path in destination.iterdir()] == ["1"]


def refusing(code: int, *calls: int) -> Callable[..., Any]:
    """Return a rename that raises the error ``code`` at these calls, counted from 1; none: at all."""
    rename, count = Path.rename, itertools.count(1)

    def renamed(path: Path, target: Path) -> Any:
        if next(count) in calls or not calls:
            raise OSError(code, os.strerror(code), str(path), None, str(target))
        return rename(path, target)

    return renamed


@pytest.mark.parametrize("code", [errno.EINVAL, errno.ENOSYS, errno.EOPNOTSUPP])
def test_a_version_is_replaced_where_folders_cannot_be_exchanged(
    code: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As on NFS, FUSE and overlays."""
    monkeypatch.setattr("models.atomic_folders._exchange", refusing(code))
    (tmp_path / "1").mkdir()
    with locked_folder(tmp_path, "1") as hidden:
        (hidden / "1" / "new").mkdir(parents=True)
        put_in_place(hidden / "1", tmp_path / "1")
    assert [*tmp_path.iterdir()] == [tmp_path / "1"]
    assert (tmp_path / "1" / "new").is_dir()


@over("calls", [(1,), (2,), (2, 3)])
def test_a_disk_that_fails_between_two_renames_keeps_the_old_version(
    calls: tuple[int, ...], tmp_path_factory: pytest.TempPathFactory
) -> None:
    """The third call puts it back; if that fails, too, it comes back as the hidden folder is cleared."""
    folder = tmp_path_factory.mktemp("m")
    (folder / "1" / "old").mkdir(parents=True)
    with pytest.MonkeyPatch.context() as patched, locked_folder(folder, "1") as hidden:
        (hidden / "1" / "new").mkdir(parents=True)
        patched.setattr("models.atomic_folders._exchange", refusing(errno.EINVAL))
        patched.setattr(Path, "rename", refusing(errno.EIO, *calls))
        with pytest.raises(OSError, match="Input/output"):
            put_in_place(hidden / "1", folder / "1")
        assert (folder / "1").exists() == (calls != (2, 3))
        patched.undo()
    assert [*folder.iterdir()] == [folder / "1"]
    assert (folder / "1" / "old").is_dir()


def test_what_was_killed_between_two_renames_has_the_old_version_again(tmp_path: Path) -> None:
    folder = tmp_path / "m"
    for hidden, retained in (("a", "1"), ("b", "2")):
        (folder / f"{PREFIX}{hidden}" / ".replaced" / retained / "old").mkdir(parents=True)
    (folder / "2" / "new").mkdir(parents=True)
    assert len(clear_repository(tmp_path)) == 2
    assert sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*")) == [
        *("1", "1/old"),
        *("2", "2/new"),
    ]


def test_a_version_that_cannot_be_moved_gets_a_next_one(
    tiny_onnx: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As a folder of a lower layer of an overlay."""
    pack = compile_onnx(tiny_onnx, tmp_path / "m", OPTIONS)
    before = content(pack)
    monkeypatch.setattr("models.atomic_folders._exchange", refusing(errno.EXDEV))
    warnings: list[str] = []
    after = compile_onnx(tiny_onnx, tmp_path / "m", replace(FORCED, warn=warnings.append))
    assert after == pack.with_name("2")
    assert "version 2" in warnings[-1]
    assert content(pack) == before
    assert sorted(pack.parent.iterdir()) == [pack, after]


@over("code", [errno.EXDEV, errno.ENOTEMPTY])
def test_the_first_version_of_a_model_is_moved_where_its_folder_cannot_be(
    code: int, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """As where another process has put another version by now, and on an overlay without attributes."""
    pack = tmp_path_factory.mktemp("m") / "m" / "1"
    with pytest.MonkeyPatch.context() as patched, building(pack, False, print) as unfinished:
        (unfinished.pack / "new").touch()
        patched.setattr(Path, "rename", refusing(code, 1))
        if code == errno.ENOTEMPTY:
            (pack.parent / "2").mkdir(parents=True)
    assert (pack / "new").is_file()
    assert [path.name for path in pack.parent.parent.iterdir()] == ["m"]


@pytest.mark.parametrize("fails", [False, True])
def test_a_file_is_unmapped_before_it_is_removed(
    fails: bool, tiny_onnx: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """NFS and FUSE rename a file that is open or mapped when it is removed, and its folder stays."""
    unlink = os.unlink
    retained: set[str] = set()

    def renaming(path: Any, *, dir_fd: int | None = None) -> None:
        folder = Path() if dir_fd is None else Path(f"/proc/self/fd/{dir_fd}").readlink()
        if f" {folder / path}\n" in Path("/proc/self/maps").read_text():
            retained.add(Path(path).name)
        else:
            retained.discard(Path(path).name)
            unlink(path, dir_fd=dir_fd)

    def refuse(*_: object) -> None:
        raise CompileError("no")

    monkeypatch.setattr(os, "unlink", renaming)
    # Without the observer of all other tests, which keeps graphs.
    monkeypatch.setattr("models.compiler.compile.run", run_passes)
    options = replace(OPTIONS, accept=refuse if fails else None)
    with contextlib.suppress(CompileError):
        compile_onnx(tiny_onnx, tmp_path / "m", options)
    assert [path.name for path in tmp_path.iterdir()] == ([] if fails else ["m"])
    assert not retained


def test_every_file_reaches_the_disk_before_the_name(
    tiny_onnx: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced: list[str] = []
    fsync = os.fsync

    def note(descriptor: int) -> None:
        path = Path(f"/proc/self/fd/{descriptor}").readlink()
        synced.append(path.name)
        assert (tmp_path / "m" / "1").exists() == (path in {tmp_path, tmp_path / "m"})
        fsync(descriptor)

    monkeypatch.setattr(os, "fsync", note)
    compile_onnx(tiny_onnx, tmp_path / "m", OPTIONS)
    files = ["manifest.json", "model.onnx", "pieces.bin", "weights.bin"]
    assert sorted(synced[:-4]) == files
    assert synced[-4:] == ["1", "m", tmp_path.name, "m"]


def test_interruption_leaves_nothing(tiny_onnx: Path, tmp_path: Path) -> None:
    def interrupt(step: str, detail: str = "") -> None:
        if step == "write":
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        compile_onnx(tiny_onnx, tmp_path / "m", OPTIONS, interrupt)
    assert not (tmp_path / "m").exists()


# Killed while compiling

# One process imports what all of them need, and each is a copy of it.
PROCESSES = multiprocessing.get_context("forkserver")
PROCESSES.set_forkserver_preload([__name__])


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def die_before(owner: Any, name: str, when: Callable[..., bool] = lambda *_: True) -> None:
    original = getattr(owner, name)

    def replaced(*args: Any, **kwargs: Any) -> Any:
        if when(*args):
            die()
        return original(*args, **kwargs)

    setattr(owner, name, replaced)


def compile_until(source: Path, destination: Path, point: str, force: bool) -> None:
    """Compile in a process of its own, up to ``point``."""

    def progress(step: str, detail: str = "") -> None:
        if step == point:
            die()

    if point == "manifest":
        die_before(compile_module, "write_manifest")
    elif point == "fsync":
        die_before(os, "fsync")
    elif point == "rename":
        die_before(write_module, "put_in_place" if force else "_move_model")
    elif point == "after":
        die_before(write_module, "_fsync", lambda path: path == destination)
    options = CompileOptions(chunk_bytes=CHUNK_BYTES, force=force)
    compile_onnx(source, destination, options, progress)


def compile_and_die(source: Path, destination: Path, point: str, force: bool) -> None:
    child = PROCESSES.Process(target=compile_until, args=(source, destination, point, force))
    child.start()
    child.join(60)
    assert child.exitcode == -signal.SIGKILL
    child.close()


def killed(point: str) -> Any:
    """What is left behind is the same for all steps between reading and writing: one is enough."""
    return pytest.param(point, marks=pytest.mark.slow if point in {"optimise", "cut"} else ())


@pytest.mark.parametrize("point", [*map(killed, STEPS), "manifest", "fsync", "rename", "after"])
def test_kill_leaves_no_half_pack(point: str, tiny_onnx: Path, tmp_path: Path) -> None:
    destination = tmp_path / "repository" / "m"
    compile_and_die(tiny_onnx, destination, point, force=False)
    if point == "after":
        assert versions(destination) == [destination / "1"]
        open_pack(destination)
        return
    if point != "read":
        (left,) = destination.parent.iterdir()
        assert left.name.startswith(".")
        with pytest.raises(PackError):
            find_pack(left)
    assert not destination.exists()
    pack = compile_onnx(tiny_onnx, destination, OPTIONS)
    assert list(destination.parent.iterdir()) == [destination]
    assert list(destination.iterdir()) == [pack]
    open_pack(pack)


@pytest.mark.parametrize("point", ["write", "rename", "after"])
def test_kill_keeps_the_old_version_or_has_the_new_one(
    point: str, tiny_onnx: Path, tmp_path: Path
) -> None:
    destination = tmp_path / "repository" / "m"
    old = compile_onnx(tiny_onnx, destination, CompileOptions(chunk_bytes=1 << 20))
    before = content(old)
    compile_and_die(tiny_onnx, destination, point, force=True)
    assert versions(destination) == [old]
    assert (content(old) == before) == (point != "after")
    assert len(list(destination.iterdir())) == 2  # the other of the two, hidden
    assert isinstance(open_pack(destination).manifest, Manifest)
    compile_onnx(tiny_onnx, destination, FORCED)
    assert list(destination.iterdir()) == [old]


def test_folder_of_a_running_compilation_is_left_alone(tiny_onnx: Path, tmp_path: Path) -> None:
    (tmp_path / "m").mkdir()
    with locked_folder(tmp_path / "m", "7") as other:
        pack = compile_onnx(tiny_onnx, tmp_path / "m", OPTIONS)
        assert clear_repository(tmp_path) == []
        assert sorted(tmp_path.joinpath("m").iterdir()) == sorted([other, pack])
    assert list(tmp_path.joinpath("m").iterdir()) == [pack]


def test_the_steps_of_a_running_compilation_are_left_alone(tiny_onnx: Path, tmp_path: Path) -> None:
    """While another process lists the repository, at any step."""
    command = [sys.executable, "-c", CLEAR, str(tmp_path)]

    def clear(step: str, detail: str = "") -> None:
        if detail:
            return
        done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
        assert done.stdout.strip() == "[]"

    open_pack(compile_onnx(tiny_onnx, tmp_path / "m", OPTIONS, clear))


CLEAR = """
import sys
from pathlib import Path

from models.packs.folders import clear_repository

print(clear_repository(Path(sys.argv[1])))
"""


def test_a_model_that_was_never_complete_leaves_no_folder(tmp_path: Path) -> None:
    (tmp_path / "m" / f"{PREFIX}1-1-a").mkdir(parents=True)
    (tmp_path / "n" / f"{PREFIX}1-1-a").mkdir(parents=True)
    (tmp_path / "n" / "1").mkdir()
    for name, sources in (("killed", "{}"), ("lacked", '{"lacked_bytes": 1}')):  # by `up`
        (tmp_path / name).mkdir()
        (tmp_path / name / "made.json").write_text(sources)
    (tmp_path / "empty").mkdir()
    assert len(clear_repository(tmp_path)) == 3
    assert sorted(path.name for path in tmp_path.iterdir()) == ["empty", "lacked", "n"]
    assert [path.name for path in (tmp_path / "n").iterdir()] == ["1"]


def test_what_killed_compilations_left_is_cleared(tiny_onnx: Path, tmp_path: Path) -> None:
    repository = tmp_path / "repository"
    pack = compile_onnx(tiny_onnx, repository / "n", OPTIONS)
    compile_and_die(tiny_onnx, repository / "n", "after", force=True)
    compile_and_die(tiny_onnx, repository / "m", "write", force=False)
    (repository / ".compiling-of-old-1-4711").mkdir()
    kept = [repository / ".hidden", repository / "m" / ".keep", repository / "n" / "2"]
    for folder in kept:
        folder.mkdir(parents=True)
    outside = tmp_path / "outside"
    outside.mkdir()
    (repository / "m" / ".compiling-link").symlink_to(outside)
    gone = clear_repository(repository)
    assert len(gone) == 3
    assert not any(path.exists() for path in gone)
    assert all(path.is_dir() for path in (*kept, outside))
    open_pack(pack)
    assert clear_repository(repository) == []


def test_without_locks_nothing_is_taken_for_left_over(
    tiny_onnx: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(descriptor: int, operation: int) -> None:
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    left = tmp_path / "m" / ".compiling-1-1"
    left.mkdir(parents=True)
    monkeypatch.setattr("models.atomic_folders.fcntl.flock", refuse)
    pack = compile_onnx(tiny_onnx, tmp_path / "m", OPTIONS)
    assert clear_repository(tmp_path) == []
    assert sorted(pack.parent.iterdir()) == [left, pack]


def test_a_folder_that_is_removed_before_it_is_locked_is_made_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    flock = fcntl.flock
    taken: list[Path] = []

    def late(descriptor: int, operation: int) -> None:
        if not taken:
            monkeypatch.setattr("models.atomic_folders.fcntl.flock", flock)
            taken.extend(clear_repository(tmp_path))
        flock(descriptor, operation)

    monkeypatch.setattr("models.atomic_folders.fcntl.flock", late)
    with locked_folder(tmp_path, "1") as folder:
        assert len(taken) == 1
        assert folder.is_dir()
        assert clear_repository(tmp_path) == []
    assert list(tmp_path.iterdir()) == []


def test_source_is_not_touched(tmp_path: Path) -> None:
    source = written(residual(), tmp_path / "m.onnx")
    before = (source.read_bytes(), source.stat().st_mtime_ns)
    compile_onnx(source, tmp_path / "repository" / "m", OPTIONS)
    assert (source.read_bytes(), source.stat().st_mtime_ns) == before
    assert sorted(path.name for path in tmp_path.iterdir()) == ["m.onnx", "repository"]
