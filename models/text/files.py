"""Files that say how texts become tokens and vectors next to a tokenizer, as Hugging Face calls them."""

import json
from pathlib import Path
from typing import Any

TOKENIZER_CONFIG, CONFIG = "tokenizer_config.json", "config.json"
SENTENCE_CONFIG, PROMPTS = "sentence_bert_config.json", "config_sentence_transformers.json"
MODULES = "modules.json"
_COMPANIONS = (TOKENIZER_CONFIG, CONFIG, SENTENCE_CONFIG, PROMPTS, MODULES)
#: The file of a module in its folder.
MODULE_CONFIG = "config.json"
#: Tokens that were added are listed in some: of 100,000 they are a few MB.
_MAX_BYTES = 8 << 20
_QUOTED, _MAX_NAME = 80, 200


def quoted(value: object) -> str:
    """Return ``value``, which a file has, as messages quote it: at most so many characters."""
    text = ascii(value)
    return text if len(text) <= _QUOTED else f"{text[:_QUOTED]}..."


def companions(tokenizer: Path) -> tuple[Path, ...]:
    """Return the files next to the file ``tokenizer`` that say something of it, those that there are."""
    paths = [tokenizer.with_name(name) for name in _COMPANIONS]
    try:
        modules = read_modules(tokenizer.with_name(MODULES))
    except ValueError:
        modules = []
    paths += [tokenizer.parent / path / MODULE_CONFIG for _, path in modules if path]
    return tuple(dict.fromkeys(path for path in paths if _is_file(path)))


def _is_file(path: Path) -> bool:
    try:
        return path.is_file()
    except OSError:  # a file says where another is, in a name that is too long
        return False


def read_object(path: Path) -> dict[str, Any]:
    """Return the JSON object that ``path`` is; a file that is not there is empty.

    Raises:
        ValueError: it is none, is too large, or cannot be read.
    """
    document = _read(path)
    if document is None:
        return {}
    if not isinstance(document, dict):
        raise ValueError(f"{path}: not a JSON object")
    return document


def read_modules(path: Path) -> list[tuple[str, str]]:
    """Return the kinds and folders of sentence-transformers' modules; none where ``path`` is not there.

    Raises:
        ValueError: it is no such file, or a folder is none inside its own.
    """
    document = _read(path)
    modules = []
    for entry in document if isinstance(document, list) else [document] if document else []:
        kind, folder = (
            (entry.get(key) for key in ("type", "path")) if isinstance(entry, dict) else (0, 0)
        )
        if not isinstance(kind, str) or not isinstance(folder, str):
            raise ValueError(f"{path}: an entry without type and path")
        if Path(folder).is_absolute() or ".." in Path(folder).parts:
            raise ValueError(f"{path}: path {quoted(folder)} leaves the folder")
        if len(folder) > _MAX_NAME:
            raise ValueError(f"{path}: path {quoted(folder)} is too long")
        modules.append((kind.rpartition(".")[2], folder))
    return modules


def _read(path: Path) -> Any:
    try:
        with path.open("rb") as file:
            data = file.read(_MAX_BYTES + 1)
        if len(data) > _MAX_BYTES:
            raise ValueError(f"larger than {_MAX_BYTES} bytes")
        return json.loads(data)
    except FileNotFoundError:
        return None
    except OSError as exc:
        raise ValueError(f"{path}: {exc.strerror or exc}") from exc
    except (ValueError, RecursionError) as exc:
        raise ValueError(f"{path}: {exc}") from exc
