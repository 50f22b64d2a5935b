"""Our end of a process that is measured (pipeline/peers/child.py is the other)."""

import contextlib
import importlib.util
import json
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from models.processes import python_command, start
from pipeline.peers import OPENVINO

#: Of a file that such a process writes: its outputs, and what its library keeps.
_FILE_BYTES = 8 << 30
_END_SECONDS = 5.0


class PeerError(Exception):
    """A peer cannot be measured: not installed, or it refuses the model. The message is one line."""


class PeerProcess:
    """The process ``command``, which has loaded a model.

    ``folder``: for its outputs; the caller removes it. ``arena_bytes``: by how much its memory grew in its
    first run, weights being loaded.
    """

    def __init__(self, name: str, command: Sequence[str], folder: Path) -> None:
        """Start it and wait until it has answered once.

        Raises:
            PeerError: it cannot load the model.
        """
        self.name = name
        self._folder = folder
        self._child = start(command, _FILE_BYTES)
        self._process = self._child.process
        try:
            self.arena_bytes = int(self._answer()["arena_bytes"])
        except BaseException:
            self.close()
            raise

    def run(self) -> float:
        """Answer once; return the seconds that it took inside its process."""
        return float(self._ask("run")["seconds"])

    def settle(self) -> float:
        """Wait until it computes nothing; return its CPU seconds since ``run`` began."""
        return float(self._ask("settle")["cpu_seconds"])

    def outputs(self, names: Sequence[str]) -> dict[str, NDArray[Any]]:
        """Return the outputs of the last run, which in their order are called ``names``."""
        path = self._folder / f"{self.name}-outputs.npz"
        self._ask(f"save {path}")
        with np.load(path, allow_pickle=False) as file:
            arrays = [file[key] for key in file.files]
        path.unlink()
        return dict(zip(names, arrays, strict=True))

    def close(self) -> None:
        """End the process."""
        if self._process.stdin:
            with contextlib.suppress(BrokenPipeError):  # what it did not read any more
                self._process.stdin.close()
        if self._process.stdout:
            self._process.stdout.close()
        self._process.wait()

    def _ask(self, command: str) -> dict[str, Any]:
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(f"{command}\n".encode())
            self._process.stdin.flush()
        except BrokenPipeError:
            raise self._exit_error() from None
        return self._answer()

    def _answer(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise self._exit_error()
        answer: dict[str, Any] = json.loads(line)
        if "failure" in answer:
            raise PeerError(f"{self.name}: {' '.join(str(answer['failure']).split())[:300]}")
        return answer

    def _exit_error(self) -> PeerError:
        """Return the error of a process that speaks no more, and end it if it lives on."""
        try:
            self._process.wait(_END_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        return PeerError(f"{self.name}: its process has ended ({self._child.exit_text()})")


def peer_command(
    name: str, model: Path, inputs: Mapping[str, NDArray[Any]], threads: int, folder: Path
) -> list[str]:
    """Return the command of the peer called ``name`` with the file ``model``; ``inputs`` go to ``folder``.

    Raises:
        PeerError: its library is not installed.
    """
    if name == OPENVINO and importlib.util.find_spec("openvino") is None:
        raise PeerError("openvino is not installed (pip install openvino)")
    file = save_inputs(inputs, folder)
    return python_command("pipeline.peers.child", name, str(model), str(file), str(threads))


def save_inputs(inputs: Mapping[str, NDArray[Any]], folder: Path) -> Path:
    """Write ``inputs`` where a process that is measured reads them; return the file."""
    file = folder / "inputs.npz"
    np.savez(file, **inputs)  # type: ignore[arg-type]  # names of arrays, not of parameters
    return file
