"""``python -m cli`` is the ``layerstream`` command."""

import signal
import sys
from collections.abc import Sequence


def start() -> None:
    """Run the command line in a process that it may give to another interpreter.

    ``serve`` gives it before anything is imported, so that what its command line and the server import both
    is read from the disk, and held as pages of files, once. Ctrl-C waits for ``run_process`` meanwhile,
    also in another interpreter: imports would answer it with a traceback.
    """
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    from models.interpreter import allow_another, has_bytecode, replace, without_docstrings

    allow_another()
    if _is_server(sys.argv[1:]) and has_bytecode() and not without_docstrings():
        replace("cli", *sys.argv[1:])
    from cli.process import main

    main()


def _is_server(words: Sequence[str]) -> bool:
    """Return whether ``words`` start a server; help is made of docstrings."""
    return words[:1] == ["serve"] and "--help" not in words


if __name__ == "__main__":
    start()
