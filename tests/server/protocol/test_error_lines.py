"""What the log has of an error: a line, and a traceback of what is a fault of the program."""

import errno
import logging
import os
import resource
from pathlib import Path

import pytest

from loader.errors import ReadError
from server.errors import InvalidRequestError, NotServingError, ServiceError
from server.faults import reason_of, traceable
from server.protocol.errors import reported
from server.repository.limited_process import ChildFaultError, message_of
from server.transport.limits import missing_files
from tests.examples import over

SLIP = KeyError("a slip")


def caused(error: Exception, cause: BaseException) -> Exception:
    error.__cause__ = cause
    return error


FAULTS = [
    SLIP,
    caused(ServiceError("compiling it"), SLIP),
    caused(
        ServiceError("compiling it"), caused(ServiceError("compiling it"), ChildFaultError("there"))
    ),
]
EXPECTED = [
    ServiceError("compiling it ended without a word"),
    ReadError("weights.bin: Input/output error"),
    OSError(24, "Too many open files"),
    MemoryError(),
    caused(InvalidRequestError("no JSON"), ValueError("no JSON")),
    caused(NotServingError("a disk"), OSError(5, "Input/output error")),
    caused(ServiceError("a disk"), OSError(5, "Input/output error")),
]


@over("error", FAULTS)
def test_faults_keep_their_traceback(error: Exception) -> None:
    assert traceable(error) is error


@over("error", EXPECTED)
def test_what_the_table_has_is_one_line(error: Exception) -> None:
    assert traceable(error) is None


def test_the_line_of_a_request(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    error = ServiceError("compiling it: a slip")
    try:
        raise SLIP
    except KeyError as exc:
        error.__cause__ = exc
    assert reported(error, Path("models")).message == "compiling it: a slip"
    assert "in test_the_line_of_a_request" in caplog.text
    assert "KeyError: 'a slip'" in caplog.text


def test_what_another_process_says_of_its_fault_has_an_end() -> None:
    line = b'{"error": "builtins:KeyError", "message": "x", "traceback": "%b"}'
    failed = message_of(line % (b"a" * (1 << 20)))
    assert len(str(failed.fault)) < 1 << 15  # type: ignore[union-attr]
    assert message_of(line % b"").fault is None  # type: ignore[union-attr]


FULL = OSError(errno.EMFILE, os.strerror(errno.EMFILE))


@over("error", [FULL, caused(ReadError("a/weights.bin: Too many open files"), FULL)])
def test_a_limit_on_open_files_is_named_with_the_settings_that_raise_it(error: Exception) -> None:
    message = reason_of(error)
    assert "Too many open files" in message
    assert "LimitNOFILE" in message
    assert "ulimit -n" in message
    assert str(resource.getrlimit(resource.RLIMIT_NOFILE)[0]) in message


def test_the_limit_of_the_system_is_another() -> None:
    assert "fs.file-max" in reason_of(OSError(errno.ENFILE, os.strerror(errno.ENFILE)))
    assert reason_of(OSError(errno.EIO, "Input/output error")) == "Input/output error"


def test_a_server_does_not_start_where_libraries_would_end_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for files, enough in ((20, False), (64, True), (resource.RLIM_INFINITY, True)):
        monkeypatch.setattr(resource, "getrlimit", lambda _, files=files: (files, files))
        assert ("LimitNOFILE" in missing_files()) != enough
