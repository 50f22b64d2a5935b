"""Stands for what the process that compiles calls: does what the "model" that it gets says.

``copy PACK`` makes that pack; ``fail KIND`` fails so, ``slip`` by a mistake of the program; ``fail open``
says which shapes it got, or wants one; ``die NUMBER`` ends by a signal; ``sleep`` goes on until it is
killed; ``babble``, ``nest`` and ``flood`` say what is no message; ``grow`` writes a file of 2 GiB.
"""

import os
import shutil
import signal
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path

from server.errors import InvalidRequestError, ServiceError, SpoolError
from server.repository import limited_process
from server.repository.compiling_child import UploadStep, failures
from server.repository.limited_process import say

KINDS = {
    "model": InvalidRequestError,
    "memory": MemoryError,
    "disk": SpoolError,
    "fault": ServiceError,
}


def fake_compile(
    source: str, destination: str, target: str, shapes: Mapping[str, Sequence[int]]
) -> None:
    word, _, rest = Path(source).read_text("utf-8").strip().partition(" ")
    say(asdict(UploadStep("read", source)))
    if word == "copy":
        shutil.copytree(rest, Path(destination, "1"))
        say(f"{source}: a warning")
    elif rest == "open":
        shown = {name: list(shape) for name, shape in shapes.items()}
        raise InvalidRequestError(f"{source}: {shown or 'fix it with --shape data=1,N'}")
    elif word == "fail":
        raise KINDS[rest](f"{source}: why not")
    elif word == "slip":
        with failures():
            raise KeyError("a slip")
    elif word == "babble":
        say({"step": ["no", "text"], "detail": ""})
    elif word == "flood":
        for _ in range(300):
            say("a" * 5000)
        say("a" * (2 << 20))
    elif word == "nest":
        with os.fdopen(os.dup(limited_process._to_server.fileno()), "w") as pipe:
            pipe.write("[" * 200_000 + "\n")
    elif word == "grow":
        with failures(), Path(destination).open("wb") as file:
            file.truncate(2 << 30)
    elif word == "die":
        sys.stderr.write("libgone.so: cannot open shared object file\n")
        sys.stderr.flush()
        os.kill(os.getpid(), int(rest))
    else:
        Path(destination).mkdir()
        Path(destination, "process").write_text(str(os.getpid()))
        say(asdict(UploadStep("sleep", str(os.getpid()))))
        signal.pause()
