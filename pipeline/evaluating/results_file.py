"""evaluation.json: what packs scored on data sets, beside the manifest, which never changes."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from models.datasets.samples import DataError
from models.packs.pack import Pack
from pipeline.profiles.whole_files import write_atomically

FILE = "evaluation.json"
_MAX_BYTES = 16 << 20


def read_results(folder: Path) -> list[dict[str, Any]]:
    """Return the results in the folder of a pack, one a data set; none where there is no such file.

    Raises:
        DataError: the file is not what ``save_result`` writes.
    """
    path = folder / FILE
    try:
        if path.stat().st_size > _MAX_BYTES:
            raise DataError(f"{path}: more than {_MAX_BYTES} bytes")
        results = json.loads(path.read_bytes())
    except FileNotFoundError:
        return []
    except (OSError, ValueError, RecursionError) as exc:
        raise DataError(f"{path}: cannot be read: {exc}; remove it and evaluate again") from exc
    held: list[Any] = results if isinstance(results, list) else [{}]
    if not all(isinstance(item, dict) and isinstance(item.get("dataset"), str) for item in held):
        raise DataError(f"{path}: not a list of results; remove it and evaluate again")
    return held


def save_result(pack: Pack, result: Mapping[str, Any]) -> Path:
    """Write ``result`` beside the others of ``pack``, in place of one of the same data set and pack.

    Raises:
        DataError: the file cannot be read or written.
    """
    kept = [item for item in read_results(pack.folder) if _subject(item) != _subject(result)]
    path = pack.folder / FILE
    try:
        write_atomically(path, json.dumps([*kept, result], indent=1) + "\n")
    except OSError as exc:
        raise DataError(f"{path}: {exc.strerror or exc}") from exc
    return path


def _subject(result: Mapping[str, Any]) -> tuple[Any, ...]:
    return result["dataset"], result.get("data"), result.get("split"), result.get("against")
