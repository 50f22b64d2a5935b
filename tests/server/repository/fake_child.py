"""Stands for what the process that compiles calls: does what the "model" that it gets says.

``copy PACK`` makes that pack; ``fail KIND`` fails so; ``fail open`` says which shapes it got, or wants one;
``die NUMBER`` ends by a signal; ``sleep`` goes on until it is killed.
"""

import os
import shutil
import signal
from collections.abc import Mapping
from pathlib import Path

from server.errors import InvalidRequestError, ServiceError, SpoolError
from server.repository.compiling_child import UploadStep
from server.repository.limited_process import say

KINDS = {
    "model": InvalidRequestError,
    "memory": MemoryError,
    "disk": SpoolError,
    "fault": ServiceError,
}


def fake_compile(
    source: Path, destination: Path, target: str, shapes: Mapping[str, tuple[int, ...]]
) -> None:
    word, _, rest = source.read_text("utf-8").strip().partition(" ")
    say(UploadStep("read", str(source)))
    if word == "copy":
        shutil.copytree(rest, destination / "1")
        say(f"{source}: a warning")
    elif rest == "open":
        shown = {name: list(shape) for name, shape in shapes.items()}
        raise InvalidRequestError(f"{source}: {shown or 'fix it with --shape data=1,N'}")
    elif word == "fail":
        raise KINDS[rest](f"{source}: why not")
    elif word == "die":
        os.kill(os.getpid(), int(rest))
    else:
        destination.mkdir()
        (destination / "process").write_text(str(os.getpid()))
        say(UploadStep("sleep", str(os.getpid())))
        signal.pause()
