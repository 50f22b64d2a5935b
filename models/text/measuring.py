"""What a tokenizer takes and knows, measured in a process of its own: ``python -m models.text.measuring``.

Its file comes from elsewhere: loading it may take any memory, or end the process.
"""

import json
import re
import subprocess
import sys
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from models.processes import child_environment, python_command
from models.records import FieldError, Record, read_json
from models.text.tokenizer import INSTALL, NoLibraryError, TokenizerError, library_tokenizer

_SECONDS = 120
#: A tokenizer of 250,000 tokens takes 277 MB; this is an address space that no machine lends for one.
_MAX_BYTES = 4 << 30
# Of what a text of its own leaves in the heap.
_SAMPLE = "What a text takes is measured: 1, 2, 3."


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenizerFacts(Record):
    """``vocabulary``: above all ids. ``pad_id``: of the padding token; None: it has none.

    ``added``: how many special tokens a text gets. ``memory_bytes``: anonymous memory at its peak while it
    was loaded, with the library.
    """

    vocabulary: int
    added: int
    memory_bytes: int
    pad_id: int | None = None


def measured(path: Path, pad_token: str | None = None) -> TokenizerFacts:
    """Return the facts of the tokenizer in the file ``path``; blocks for as long as loading it takes.

    Raises:
        NoLibraryError: the library is not there. TokenizerError: the file is damaged, or it takes too long.
    """
    if find_spec("tokenizers") is None:
        raise NoLibraryError(f"{path}: the library that reads it is missing: {INSTALL}")
    command = python_command(
        "models.text.measuring", str(path), *([pad_token] if pad_token else [])
    )
    try:
        done = subprocess.run(  # noqa: S603
            command, capture_output=True, env=child_environment(), timeout=_SECONDS, check=False
        )
    except subprocess.TimeoutExpired as exc:
        raise TokenizerError(f"{path}: not loaded within {_SECONDS} s") from exc
    if done.returncode:
        lines = done.stderr.decode(errors="replace").strip().splitlines()
        reason = lines[-1] if lines else f"its process ended with status {done.returncode}"
        raise TokenizerError(
            reason if reason.startswith(str(path)) else f"{path}: cannot be loaded: {reason}"
        )
    try:
        return read_json(TokenizerFacts, done.stdout)
    except FieldError as exc:
        raise TokenizerError(f"{path}: cannot be measured: {exc}") from exc


def _facts(path: Path, pad_token: str | None) -> dict[str, Any]:
    before = _anonymous_bytes()
    try:
        tokenizer = library_tokenizer(path, path.read_bytes())
    except OSError as exc:
        raise TokenizerError(f"{path}: {exc.strerror or exc}") from exc
    tokenizer.encode(_SAMPLE)
    # The peak counts pages of files, too, which are the same before and after.
    files = _status_bytes("RssFile") + _status_bytes("RssShmem")
    peak = max(_status_bytes("VmHWM") - files, _anonymous_bytes())
    ids = tokenizer.get_vocab(with_added_tokens=True).values()
    return {
        "vocabulary": max(ids, default=0) + 1,
        "added": tokenizer.num_special_tokens_to_add(is_pair=False),
        "memory_bytes": max(peak - before, 0),
        "pad_id": None if pad_token is None else tokenizer.token_to_id(pad_token),
    }


def _anonymous_bytes() -> int:
    return _status_bytes("RssAnon")


def _status_bytes(field: str) -> int:
    match = re.search(rf"^{field}:\s+(\d+) kB", Path("/proc/self/status").read_text(), re.MULTILINE)
    return int(match[1]) << 10 if match else 0


def main() -> None:
    """Print the facts of the file that is named as JSON; a fault is the last line of standard error."""
    import resource

    resource.setrlimit(resource.RLIMIT_AS, (_MAX_BYTES, _MAX_BYTES))
    path, pad_token, *_ = *sys.argv[1:], None
    try:
        facts = _facts(Path(str(path)), pad_token)
    except (TokenizerError, MemoryError) as exc:
        sys.exit(str(exc) or f"{path}: takes more than {_MAX_BYTES >> 30} GiB")
    sys.stdout.write(json.dumps(facts))


if __name__ == "__main__":
    main()
