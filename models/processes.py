"""Processes of this program: how a module of ours runs in an interpreter of its own.

Invariant: such a process imports the code that this one imports, and nothing that lies in the working
directory, where a repository and what clients upload may be. Its environment holds what libraries need to
compute, no search path that depends on the working directory, and no variable that runs code.
"""

import contextlib
import ctypes
import errno
import os
import resource
import signal
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from models.errors import printable

# 2 MB, for a process that starts others and waits.
if TYPE_CHECKING:
    from asyncio.subprocess import Process

#: The folder with the packages of this program: a checkout, or where they were installed.
CODE = Path(__file__).resolve().parents[1]
#: Packages lie there beside those of others, and every interpreter of this installation looks there.
_INSTALLED = ("site-packages", "dist-packages")

# What a process inherits: its user and places, and how many threads, devices and arenas libraries use.
# Keys and settings of the service are not among it.
_INHERITED = frozenset(
    {
        *("HOME", "LANG", "LANGUAGE", "PATH", "TMPDIR", "TZ", "USER", "XDG_CACHE_HOME"),
        *("GLIBC_TUNABLES", "LD_LIBRARY_PATH", "PYDANTIC_DISABLE_PLUGINS"),
    }
)
_INHERITED_PREFIXES = (
    *("CUDA_", "CUPY_", "GOMP_", "KMP_", "LC_", "MALLOC_", "MKL_", "NVIDIA_", "OMP_"),
    *("OPENBLAS_", "ORT_", "OV_"),
)
_FOLDERS = ("PATH", "DIR", "HOME")

_TAIL_BYTES = 4096
_TAIL_LINES = 3
_TAIL_CHARACTERS = 400
_PR_SET_PDEATHSIG = 1
#: A process of the process may keep standard error open: its end is not waited for longer than this.
_TAIL_SECONDS = 1.0


def python_command(module: str, *arguments: str, flags: Sequence[str] = ()) -> list[str]:
    """Return the command that runs ``module`` of ours with this interpreter, and these ``flags`` of it.

    With -P the working directory is not searched for modules.
    """
    return [sys.executable, *flags, "-P", "-m", module, *arguments]


def child_environment(inherited: Mapping[str, str] = os.environ) -> dict[str, str]:
    """Return the environment of such a process; ``inherited``: that of this one.

    It names the code of this process first, so that a checkout which is run from its folder is found.
    """
    retained = {name: value for name, value in inherited.items() if _is_inherited(name)}
    for name in [name for name in retained if name.endswith(_FOLDERS)]:
        retained[name] = os.pathsep.join(_absolute(retained[name]))
        if not retained[name]:
            del retained[name]
    paths = [] if CODE.name in _INSTALLED else [str(CODE)]
    paths += [path for path in _absolute(inherited.get("PYTHONPATH", "")) if _is_elsewhere(path)]
    retained |= {"PYTHONPATH": os.pathsep.join(dict.fromkeys(paths)), "PYTHONSAFEPATH": "1"}
    if sys.dont_write_bytecode:
        retained["PYTHONDONTWRITEBYTECODE"] = "1"
    if sys.flags.utf8_mode:
        retained["PYTHONUTF8"] = "1"
    return retained


def _is_inherited(name: str) -> bool:
    return name in _INHERITED or name.startswith(_INHERITED_PREFIXES)


def _absolute(paths: str) -> list[str]:
    """Return the absolute ones among ``paths``; an empty one means the working directory."""
    return [path for path in paths.split(os.pathsep) if Path(path).is_absolute()]


def _is_elsewhere(path: str) -> bool:
    """Return whether ``path`` is another folder than the working directory."""
    try:
        return os.path.realpath(path) != str(Path.cwd())
    except OSError:  # the working directory was removed
        return True


class StandardError:
    """What a process writes to standard error: it is read to its end, and the last of it is kept."""

    def __init__(self) -> None:
        self._from, self.descriptor = os.pipe()
        self._tail = b""
        self._reading = threading.Thread(target=self._read, name="child-errors", daemon=True)
        try:
            self._reading.start()
        except RuntimeError as exc:
            self.close()
            os.close(self._from)
            raise OSError(errno.EAGAIN, "the system allows no more threads") from exc

    def close(self) -> None:
        """Close the end that the process writes to, which has its own copy by now."""
        os.close(self.descriptor)

    def text(self) -> str:
        """Return the last lines in one, printable and of bounded length; after the process has ended."""
        self._reading.join(_TAIL_SECONDS)
        lines = self._tail.decode(errors="replace").splitlines()
        words = [" ".join(line.split()) for line in lines if line.strip()][-_TAIL_LINES:]
        return printable("; ".join(words))[-_TAIL_CHARACTERS:]

    def _read(self) -> None:
        with os.fdopen(self._from, "rb", buffering=0) as pipe:
            while read := pipe.read(_TAIL_BYTES):
                self._tail = (self._tail + read)[-_TAIL_BYTES:]


@dataclass(frozen=True)
class Child:
    """A process with pipes to its standard input and output; ``errors``: its standard error."""

    process: subprocess.Popen[bytes]
    errors: StandardError

    def kill(self) -> None:
        """End the process at once, and close its pipes."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.kill()
        self.process.wait()
        self.process.stdout.close()
        self.process.stdin.close()

    def exit_text(self) -> str:
        """Return the status of a process that has ended, and the end of what it wrote, in words."""
        return exit_text(self.process.returncode, self.errors)


def start(command: Sequence[str], file_bytes: int) -> Child:
    """Start ``command``, made of a ``python_command``; no file that it writes grows over ``file_bytes``.

    Raises:
        OSError: the system allows no more processes, files or memory.
    """
    errors = StandardError()
    try:
        process = subprocess.Popen(  # noqa: S603  our own modules
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=errors.descriptor,
            env=child_environment(),
        )
    except BaseException:
        errors.close()
        errors.text()  # nothing of it stays open
        raise
    errors.close()
    _limit_files(process.pid, file_bytes)
    return Child(process, errors)


async def start_async(
    command: Sequence[str], file_bytes: int, message_bytes: int
) -> "tuple[Process, StandardError]":
    """Do as ``start``, for the event loop; a line of the process's output has at most ``message_bytes``."""
    import asyncio

    errors = StandardError()
    try:
        process = await asyncio.create_subprocess_exec(
            *command,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=errors.descriptor,
            env=child_environment(),
            limit=message_bytes,
        )
    except BaseException:
        errors.close()
        errors.text()  # nothing of it stays open
        raise
    errors.close()
    _limit_files(process.pid, file_bytes)
    return process, errors


def end_with(parent: int) -> None:
    """End the process that calls this when the process ``parent`` ends; it dumps no core."""
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        sys.exit(f"process {parent}, which started this one, is gone")
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


def exit_text(status: int | None, errors: StandardError) -> str:
    """Return the ``status`` of a process, and the end of what it wrote to standard error, in words."""
    text = errors.text()
    return f"status {status}{text and f': {text}'}"


def _limit_files(process: int, n_bytes: int) -> None:
    with contextlib.suppress(ProcessLookupError):  # it has ended already
        resource.prlimit(process, resource.RLIMIT_FSIZE, (n_bytes, n_bytes))
