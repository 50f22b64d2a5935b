"""Another interpreter in the place of this one: without docstrings, assertions and the command line.

A server holds 6 MiB less so. Its bytecode (-OO) is written once, into the folders of the usual one. Where
that is not possible, an interpreter would compile everything at each start and hold more, so this one goes
on.
"""

import os
import signal
import subprocess
import sys
from collections.abc import Iterable, Sequence
from importlib import import_module
from importlib.machinery import SourcelessFileLoader
from importlib.util import cache_from_source, find_spec
from pathlib import Path

from models.processes import child_environment, python_command

_FLAGS = ("-OO",)
_OPTIMIZATION = "2"
_WITHOUT_DOCSTRINGS = 2  # of sys.flags.optimize
#: What a server and its command line import, some of it when it is used first, a module of ours first.
_IMPORTED = (
    *("server.serve", "cli.serve", "cli.commands", "pipeline.devices.cpu"),
    *("onnxruntime", "anyio._backends._asyncio", "uvicorn.lifespan.off", "encodings.idna"),
)
#: Where these have bytecode, all of it has.
_CHECKED = ("server.serve", "fastapi", "numpy", "asyncio")
#: Of the process that writes bytecode: 4 s on a quiet core. A service manager waits 90 s for a start.
_SECONDS = 60.0
# Of a file of bytecode, which names its source's time and size: magic number, flags, time, size.
_KIND, _SOURCE = slice(4, 8), slice(8, 16)


class _Process:
    """Whether something else runs here than the command."""

    is_replaceable = False


def allow_another() -> None:
    """Say that nothing but the command line runs in this process, so that another may take its place."""
    _Process.is_replaceable = True


def replace(module: str, *arguments: str, descriptors: Sequence[int] = ()) -> None:
    """Run ``module`` of ours in this process, with another interpreter; return where that is not to be.

    The process stays the same to the system: number, environment, limits, descriptors 0 to 2 and
    ``descriptors``.
    """
    if not _Process.is_replaceable:
        return
    _Process.is_replaceable = _write_bytecode()
    if not _Process.is_replaceable:
        return
    for descriptor in descriptors:
        os.set_inheritable(descriptor, True)
    for stream in (sys.stdout, sys.stderr):
        if stream is not None:  # as of a process that was started with it closed
            stream.flush()
    # Ctrl-C waits until the other interpreter can answer it without a traceback.
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        command = python_command(module, *arguments, flags=_FLAGS)
        os.execve(command[0], command, _environment())  # noqa: S606
    except OSError:  # no memory for it
        _Process.is_replaceable = False
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _environment() -> dict[str, str]:
    """Return the environment of this process, with the folders in which modules of ours are found."""
    child = child_environment()
    return {**os.environ, **{name: child[name] for name in child if name.startswith("PYTHON")}}


def servers_are_lean() -> bool:
    """Return whether a server has such an interpreter: this process, or one that this command line starts.

    The first of them writes the bytecode.
    """
    return without_docstrings() or (_Process.is_replaceable and (has_bytecode() or _can_write()))


def without_docstrings() -> bool:
    """Return whether this interpreter is one without docstrings."""
    return sys.flags.optimize >= _WITHOUT_DOCSTRINGS


def _files() -> list[Path]:
    specs = map(find_spec, _CHECKED)
    return [Path(spec.origin) for spec in specs if spec is not None and spec.origin]


def has_bytecode() -> bool:
    """Return whether a server's bytecode is there."""
    return all(map(_is_compiled, _files()))


def _write_bytecode() -> bool:
    """Write what is missing, in another process; return whether all is there."""
    if has_bytecode():
        return True
    if not _can_write():
        return False
    try:
        subprocess.run(  # noqa: S603
            python_command("models.interpreter", *_IMPORTED, flags=_FLAGS),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            env=_environment(),
            timeout=_SECONDS,
            check=True,
        )
    except (OSError, subprocess.SubprocessError):
        return False
    return has_bytecode()


def _can_write() -> bool:
    return not sys.dont_write_bytecode and all(map(_is_writable, _files()))


def _is_compiled(source: Path) -> bool:
    """Return whether there is bytecode of ``source`` as it is now."""
    try:
        with Path(cache_from_source(source, optimization=_OPTIMIZATION)).open("rb") as file:
            head = file.read(_SOURCE.stop)
        state = source.stat()
    except OSError:
        return False
    if any(head[_KIND]):  # it names a digest of the source, or nothing
        return True
    fields = (int(state.st_mtime), state.st_size)
    return head[_SOURCE] == b"".join((field & 0xFFFFFFFF).to_bytes(4, "little") for field in fields)


def _is_writable(source: Path) -> bool:
    folder = Path(cache_from_source(source)).parent
    while not folder.exists():
        folder = folder.parent
    return os.access(folder, os.W_OK)


def _remove_cut(written: Iterable[Path], first: Path) -> bool:
    """Remove bytecode of ``written`` that a full disk has cut, and ``first``: then all counts as missing.

    Python imports it at no later start: it raises EOFError. Return whether there was any.
    """
    cut = [path for path in written if not _is_complete(path)]
    for path in (*cut, first) if cut else ():
        path.unlink(missing_ok=True)
    return bool(cut)


def _is_complete(bytecode: Path) -> bool:
    try:
        SourcelessFileLoader("bytecode", str(bytecode)).get_code("bytecode")
    except (EOFError, ImportError, TypeError, ValueError):
        return False
    except OSError:  # none was written
        return True
    return True


def _write_all(names: Sequence[str]) -> int:
    """Import modules, which writes bytecode; return the status of the process that does so."""
    (first, *_) = (Path(str(import_module(name).__cached__)) for name in names)
    specs = [getattr(module, "__spec__", None) for module in [*sys.modules.values()]]
    return _remove_cut([Path(spec.cached) for spec in specs if spec and spec.cached], first)


if __name__ == "__main__":  # the process that writes bytecode
    sys.exit(_write_all(sys.argv[1:]))
