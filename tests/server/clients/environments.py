"""Clients that cannot live in this project's environment, each in one of its own; a server for them."""

import os
import subprocess
import sys
import threading
import venv
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.server.support import LIMIT_SECONDS, serving_port


def programs(folder: Path, *requirements: str, variable: str) -> Path:
    """The folder of the programs of an environment with ``requirements``, made in ``folder``.

    The environment variable ``variable`` names a Python that has it already.
    """
    given = os.environ.get(variable)
    if given:
        return Path(given).parent
    venv.create(folder, with_pip=True)
    found = folder / "bin"
    try:
        subprocess.run(
            [found / "python", "-m", "pip", "install", "-q", *requirements],
            capture_output=True,
            text=True,
            check=True,
            timeout=300,
        )
    except subprocess.TimeoutExpired as exc:
        why = str(exc)
    except subprocess.CalledProcessError as exc:
        why = exc.stderr
    else:
        return found
    pytest.skip(f"{', '.join(requirements)} cannot be installed: {why[-200:]}")


@contextmanager
def served(*flags: str, log: list[bytes] | None = None) -> Iterator[int]:
    """A server with these ``flags`` in a process of its own; its port for HTTP.

    ``log`` gets, at the end, the lines that it wrote since.
    """
    code = "from cli.process import main; main()"
    command = [sys.executable, "-c", code, "serve", "--port", "0", *flags]
    root = Path(__file__).parents[3]
    with subprocess.Popen(command, stderr=subprocess.PIPE, cwd=root) as server:
        assert server.stderr is not None
        lines = [] if log is None else log
        reader = threading.Thread(
            target=lines.extend, args=(server.stderr,)
        )  # or it fills the pipe
        try:
            port = serving_port(server)
            reader.start()
            yield port
        finally:
            server.terminate()
            server.wait(LIMIT_SECONDS)
            if reader.ident is not None:
                reader.join()
    assert server.returncode in {0, -15}
