"""Readers of real files, on whatever file system the test's folder has, and with a broken preadv."""

import errno
import logging
import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loader.buffers import Buffer
from loader.errors import ClosedError, FileChangedError, ReadError
from loader.readers.fakes import MemoryReader
from loader.readers.files import BufferedReader, DirectReader, ReplaceableReader, open_reader
from loader.readers.interface import Reader

BLOCK = 4096
CONTENT = b"".join(number.to_bytes(4, "little") for number in range(8 * BLOCK // 4))
KINDS = [pytest.param("direct", marks=pytest.mark.disk), "buffered"]

Open = Callable[[Path], Reader]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "weights.bin"
    path.write_bytes(CONTENT)
    return path


@pytest.fixture(params=KINDS)
def opened(request: pytest.FixtureRequest, path: Path) -> Iterator[Open]:
    """Return a function that opens a reader of the kind; skip where the disk refuses O_DIRECT."""
    readers: list[Reader] = []

    def opened(of: Path) -> Reader:
        reader = DirectReader(of) if request.param == "direct" else BufferedReader(of)
        readers.append(reader)
        return reader

    if request.param == "direct":
        skip_without_direct(path)
    yield opened
    for reader in readers:
        reader.close()


def skip_without_direct(path: Path) -> None:
    try:
        reader = DirectReader(path)
        read(reader, 0, BLOCK)
    except ReadError as exc:
        cause = exc.__cause__
        if isinstance(cause, OSError) and cause.errno in {errno.EINVAL, errno.EOPNOTSUPP}:
            pytest.skip(f"the file system of {path.parent} refuses O_DIRECT")
        raise
    reader.close()


def read(reader: Reader, offset: int, length: int) -> bytes:
    buffer = Buffer(length)
    reader.read_into(offset, buffer.bytes.data)
    data = buffer.bytes.tobytes()
    buffer.close()
    return data


@pytest.mark.parametrize(("offset", "length"), [(0, BLOCK), (BLOCK, 3 * BLOCK), (0, 8 * BLOCK)])
def test_reads_are_what_is_in_the_file(offset: int, length: int, opened: Open, path: Path) -> None:
    reader = opened(path)
    assert offset % reader.alignment == length % reader.alignment == 0
    assert read(reader, offset, length) == CONTENT[offset : offset + length]


def test_nothing_is_read_into_nothing(opened: Open, path: Path) -> None:
    opened(path).read_into(0, memoryview(bytearray()))


@given(offset=st.integers(0, len(CONTENT)), length=st.integers(0, len(CONTENT)))
def test_buffered_reader_reads_any_range(
    offset: int, length: int, tmp_path_factory: pytest.TempPathFactory
) -> None:
    path = tmp_path_factory.getbasetemp() / "any-range.bin"
    path.write_bytes(CONTENT)
    reader = BufferedReader(path)
    target = bytearray(length)
    if offset + length > len(CONTENT):
        with pytest.raises(ReadError):
            reader.read_into(offset, memoryview(target))
    else:
        reader.read_into(offset, memoryview(target))
        assert target == CONTENT[offset : offset + length]
    reader.close()


@pytest.mark.parametrize("size", [0, 100, BLOCK, BLOCK + 1, 2 * BLOCK - 512, 3 * BLOCK])
def test_file_that_became_short_is_reported(
    size: int, opened: Open, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    reader = opened(path)
    os.truncate(path, size)
    preadv = os.preadv

    def strict(descriptor: int, buffers: list[memoryview], offset: int) -> int:
        """Some file systems refuse an unaligned offset even behind the end of the file."""
        if offset % reader.alignment:
            raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))
        return preadv(descriptor, buffers, offset)

    monkeypatch.setattr(os, "preadv", strict)
    with pytest.raises(ReadError, match="ends at") as caught:
        read(reader, 0, 4 * BLOCK)
    assert type(caught.value) is ReadError
    message = str(caught.value)
    assert message.startswith(f"{path}: ends at {size}, {4 * BLOCK - size} bytes short of [0, ")
    with pytest.raises(ReadError, match="ends at"):
        read(reader, 4 * BLOCK, BLOCK)
    if size >= BLOCK:
        assert read(reader, 0, BLOCK) == CONTENT[:BLOCK]


def test_missing_file_and_folder_are_named(opened: Open, tmp_path: Path) -> None:
    with pytest.raises(ReadError) as caught:
        opened(tmp_path / "none")
    assert str(caught.value) == f"{tmp_path / 'none'}: No such file or directory"
    with pytest.raises(ReadError, match=str(tmp_path)):
        read(opened(tmp_path), 0, BLOCK)


def test_closed_reader_refuses(opened: Open, path: Path) -> None:
    reader = opened(path)
    reader.close()
    reader.close()
    with pytest.raises(ClosedError, match="reader closed"):
        read(reader, 0, BLOCK)


def test_descriptors_are_closed(opened: Open, path: Path) -> None:
    def descriptors() -> set[str]:
        return {name.name for name in Path("/proc/self/fd").iterdir()}

    before = descriptors()
    reader = opened(path)
    read(reader, 0, BLOCK)
    reader.close()
    assert descriptors() == before


# A disk that does not behave


@pytest.mark.parametrize("code", [errno.EIO, errno.ENXIO, errno.EINTR])
def test_errors_of_the_disk_name_file_and_range(
    code: int, opened: Open, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    reader = opened(path)

    def broken(*_args: object) -> int:
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(os, "preadv", broken)
    with pytest.raises(ReadError) as caught:
        read(reader, BLOCK, 2 * BLOCK)
    assert type(caught.value) is ReadError
    assert str(caught.value) == f"{path}: bytes [{BLOCK}, {3 * BLOCK}): {os.strerror(code)}"
    assert isinstance(caught.value.__cause__, OSError)


def test_error_after_a_part_is_an_error(
    opened: Open, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    reader = opened(path)
    preadv = os.preadv

    def later(descriptor: int, buffers: list[memoryview], offset: int) -> int:
        if offset:
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        return preadv(descriptor, [buffers[0][:BLOCK]], offset)

    monkeypatch.setattr(os, "preadv", later)
    with pytest.raises(ReadError, match="Input/output error"):
        read(reader, 0, 2 * BLOCK)


@pytest.mark.parametrize("at_most", [BLOCK, 2 * BLOCK, BLOCK + 512, 3 * BLOCK - 1])
def test_short_reads_go_on_where_they_stopped(
    at_most: int, opened: Open, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A signal or a busy disk may end a read early, anywhere; direct ones go on at a block."""
    reader = opened(path)
    preadv = os.preadv
    calls: list[int] = []

    def short(descriptor: int, buffers: list[memoryview], offset: int) -> int:
        assert offset % reader.alignment == 0
        calls.append(offset)
        return min(preadv(descriptor, buffers, offset), at_most)

    monkeypatch.setattr(os, "preadv", short)
    assert read(reader, BLOCK, 6 * BLOCK) == CONTENT[BLOCK : 7 * BLOCK]
    assert len(calls) > 1


# Which reader a file gets


def warnings_of(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]


@pytest.mark.disk
def test_direct_where_it_works(path: Path, caplog: pytest.LogCaptureFixture) -> None:
    skip_without_direct(path)
    reader = open_reader(path)
    assert reader.kind == "direct"
    assert warnings_of(caplog) == []
    reader.close()


class Refusing(MemoryReader):
    """Accepts to be opened and refuses every read with ``code``."""

    def __init__(self, code: int) -> None:
        def refuse(_offset: int, _length: int) -> None:
            raise ReadError("refused") from OSError(code, os.strerror(code))

        super().__init__(CONTENT, refuse)


@pytest.mark.parametrize("code", [errno.EINVAL, errno.EOPNOTSUPP])
@pytest.mark.parametrize("when", ["open", "read"])
def test_refusal_means_buffered_and_one_warning(
    code: int, when: str, path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    refusing = Refusing(code)

    def direct(_path: Path) -> Reader:
        if when == "open":
            refusing.read_into(0, memoryview(bytearray(BLOCK)))
        return refusing

    reader = open_reader(path, direct)
    assert reader.kind == "buffered"
    (warning,) = warnings_of(caplog)
    assert str(path) in warning
    assert "refuses O_DIRECT" in warning
    assert read(reader, 100, 1000) == CONTENT[100:1100]
    assert refusing.closed == (when == "read")
    assert len(warnings_of(caplog)) == 1
    reader.close()


@pytest.mark.parametrize("code", [errno.EIO, errno.EACCES, errno.EMFILE])
def test_other_errors_are_not_hidden(
    code: int, path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    refusing = Refusing(code)
    with pytest.raises(ReadError, match="refused"):
        open_reader(path, lambda _path: refusing)
    assert refusing.closed
    assert warnings_of(caplog) == []


def test_file_that_cannot_be_read_at_all(tmp_path: Path) -> None:
    with pytest.raises(ReadError) as caught:
        open_reader(tmp_path / "none")
    assert str(caught.value) == f"{tmp_path / 'none'}: No such file or directory"


def test_empty_file_needs_no_direct_reader(tmp_path: Path) -> None:
    (tmp_path / "empty").touch()

    def direct(_path: Path) -> Reader:
        raise AssertionError("tried")

    reader = open_reader(tmp_path / "empty", direct)
    with pytest.raises(ReadError, match="ends at 0"):
        read(reader, 0, 1)
    reader.close()


def test_memory_file_system(caplog: pytest.LogCaptureFixture) -> None:
    """On tmpfs old kernels refuse O_DIRECT and new ones do it: the bytes are the same."""
    folder = Path("/dev/shm")
    if not folder.is_dir() or not os.access(folder, os.W_OK):
        pytest.skip("there is no writable /dev/shm")
    path = folder / f"layerstream-test-{os.getpid()}"
    try:
        path.write_bytes(CONTENT)
        reader = open_reader(path)
        assert read(reader, BLOCK, BLOCK) == CONTENT[BLOCK : 2 * BLOCK]
        assert len(warnings_of(caplog)) == (reader.kind == "buffered")
        reader.close()
    finally:
        path.unlink(missing_ok=True)


# A file that changes behind the reader's back


def test_unchanged_file_passes(opened: Open, path: Path) -> None:
    reader = opened(path)
    read(reader, 0, BLOCK)
    reader.check()
    os.utime(path.parent)
    reader.check()


def change_times(path: Path) -> None:
    os.utime(path, ns=(1, 1))


def append(path: Path) -> None:
    with path.open("ab") as file:
        file.write(b"x")


def truncate(path: Path) -> None:
    os.truncate(path, BLOCK)


def replace(path: Path) -> None:
    other = path.with_name("other")
    other.write_bytes(CONTENT)
    other.replace(path)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (change_times, "was changed"),
        (append, "was changed"),
        (truncate, "was changed"),
        (replace, "another file took its place"),
        (Path.unlink, "No such file"),
    ],
)
def test_changed_file_is_named(
    change: Callable[[Path], None], reason: str, opened: Open, path: Path
) -> None:
    reader = opened(path)
    change(path)
    for _ in range(2):
        with pytest.raises(FileChangedError, match=reason) as caught:
            reader.check()
        assert str(caught.value).startswith(f"{path}: ")


def test_a_replaced_file_is_read_on(
    opened: Open, path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    reader = ReplaceableReader(opened(path))
    replace(path)
    path.write_bytes(b"another")
    block = Buffer(BLOCK)
    for _ in range(2):
        reader.check()
        reader.read_into(0, block.bytes.data)
        assert bytes(block.bytes.data) == CONTENT[:BLOCK]
    block.close()
    assert len([line for line in caplog.messages if "took its place" in line]) == 1
    path.unlink()
    with pytest.raises(FileChangedError, match="No such file"):
        reader.check()


def test_closed_reader_is_not_checked(opened: Open, path: Path) -> None:
    reader = opened(path)
    reader.close()
    with pytest.raises(ClosedError):
        reader.check()
