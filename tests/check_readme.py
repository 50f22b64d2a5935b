"""Run a page as a reader who copies every block, from top to bottom: ``python -m tests.check_readme``.

The ``sh`` and ``python`` blocks of README.md run in order, as they are printed, in one shell: in a clone of
HEAD in a temporary folder, with a new HOME and without the caller's virtual environment. The first that
fails ends it, and its line is printed. Other blocks are not for copying. ``--here`` runs them in the folder
of this checkout instead. It installs packages and takes port 8080, so it is no test; ``--port 18080`` puts
another one in its place, where others use this one.
"""

import argparse
import contextlib
import os
import shlex
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import MappingProxyType

from tests.documents import ROOT, Block, read

_RUN = ("sh", "python")
_PORT = 8080  # that of the page
_KEPT = ("LANG", "TMPDIR", "CI", "PYTHON")


def script(blocks: list[Block], page: str) -> str:
    """Return one text for a shell that runs ``blocks`` in order and ends after the first that fails."""
    parts = ["set -e"]
    for block in blocks:
        name = f"{page}:{block.line}"
        parts.append(rf"printf '\n== %s\n' {shlex.quote(name)}")
        parts.append(
            f"trap 'status=$?; [ $status = 0 ] || echo \"FAIL {name}: exit status $status\"' EXIT"
        )
        if block.language == "python":
            parts.append(f"python - <<'END OF BLOCK'\n{block.text}END OF BLOCK")
        else:
            # In the list of an `if` a failure would not end the shell; so what it ended with is looked at.
            parts.append(f"{block.text}status=$?; [ $status = 0 ] || exit $status")
    parts.append(rf"printf '\nPASS %s: %s blocks\n' {shlex.quote(page)} {len(blocks)}")
    return "\n".join(parts) + "\n"


def moved(text: str, port: int) -> str:
    """Return ``text`` with ``port`` in place of the one that the page takes."""
    if port == _PORT:
        return text
    return f"export LAYERSTREAM_PORT={port}\n{text.replace(f':{_PORT}', f':{port}')}"


def environment(home: Path, given: Mapping[str, str]) -> dict[str, str]:
    """Return what a fresh login would have, and how this machine reaches packages."""
    kept = {
        name: value
        for name, value in given.items()
        if name in _KEPT or name.startswith("PIP_") or name.lower().endswith("_proxy")
    }
    path = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
    return {**kept, "HOME": str(home), "PATH": path}


@contextlib.contextmanager
def checkout(here: bool) -> Iterator[Path]:
    """Yield a folder with the files of HEAD; ``here``: that of this checkout, as it is."""
    if here:
        yield ROOT
        return
    with tempfile.TemporaryDirectory(prefix="layerstream-readme.") as folder:
        clone = Path(folder, "layerstream")
        subprocess.run(
            ["git", "clone", "--quiet", "--no-hardlinks", str(ROOT), str(clone)], check=True
        )
        yield clone


def run(
    text: str, folder: Path, limit: float, variables: Mapping[str, str] = MappingProxyType({})
) -> int:
    """Run ``text`` in ``folder`` and end all that it started; return its status, 124 past ``limit``.

    ``variables``: what a reader has set beside a fresh login.
    """
    with tempfile.TemporaryDirectory(prefix="layerstream-home.") as home:
        process = subprocess.Popen(
            # Not by standard input: a command that reads it would take what comes next.
            ["bash", "-c", text],
            stdin=subprocess.DEVNULL,
            cwd=folder,
            env={**environment(Path(home), os.environ), **variables},
            start_new_session=True,
        )
        try:
            process.wait(limit)
        except subprocess.TimeoutExpired:
            print(f"FAIL: not done after {limit:.0f} s", flush=True)
            return 124
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        return process.returncode


def main() -> int:
    """Run the page; return the exit status."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("page", nargs="?", default="README.md")
    parser.add_argument("--here", action="store_true", help="in this checkout, not in a clone")
    parser.add_argument("--list", action="store_true", help="print the script and run nothing")
    parser.add_argument("--port", type=int, default=_PORT)
    parser.add_argument("--limit", type=float, default=900, help="seconds for all blocks")
    options = parser.parse_args()
    with checkout(options.here) as folder:
        page = read((folder / options.page).read_text("utf-8"))
        blocks = [block for block in page.blocks if block.language in _RUN]
        text = moved(script(blocks, options.page), options.port)
        if options.list:
            print(text, end="")
            return 0
        with socket.socket() as taken:
            if taken.connect_ex(("127.0.0.1", options.port)) == 0:
                print(
                    f"port {options.port} of this machine is in use: the page needs one (--port)",
                    file=sys.stderr,
                )
                return 2
        return run(text, folder, options.limit)


if __name__ == "__main__":
    sys.exit(main())
