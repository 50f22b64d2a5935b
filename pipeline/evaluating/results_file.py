"""evaluation.json: what packs scored on data sets, beside the manifest, which never changes."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter, ValidationError

from models.datasets.samples import DataError
from models.errors import first_fault
from models.packs.pack import Pack
from models.whole_files import check_writable, write_atomically
from pipeline.evaluating.result_record import EvaluationResult

FILE = "evaluation.json"
_MAX_BYTES = 16 << 20
_RESULTS = TypeAdapter(list[EvaluationResult])


def read_results(folder: Path) -> list[dict[str, Any]]:
    """Return the results in the folder of a pack, one a data set; none where there is no such file.

    Raises:
        DataError: the file is not what ``save_result`` writes.
    """
    path = folder / FILE
    try:
        if path.exists() and not path.is_file():  # a pipe, or a link to what has no end
            raise DataError(f"{path}: not a file; remove it and evaluate again")
        if path.stat().st_size > _MAX_BYTES:
            raise DataError(f"{path}: more than {_MAX_BYTES} bytes")
        results = json.loads(path.read_bytes())
    except FileNotFoundError:
        return []
    except (OSError, ValueError, RecursionError) as exc:
        raise DataError(f"{path}: cannot be read: {exc}; remove it and evaluate again") from exc
    try:
        _RESULTS.validate_python(results)
    except ValidationError as exc:
        raise DataError(f"{path}: {first_fault(exc)}; remove it and evaluate again") from exc
    held: list[dict[str, Any]] = results
    return held


def check_results(pack: Pack) -> None:
    """Refuse what ``save_result`` would, before there is a result that could be lost.

    Raises:
        DataError: the file cannot be read or written.
    """
    read_results(pack.folder)
    try:
        check_writable(pack.folder)
    except OSError as exc:
        message = f"{pack.folder}: the result is written there: {exc.strerror or exc}"
        raise DataError(message) from exc


def save_result(pack: Pack, result: Mapping[str, Any]) -> Path:
    """Write ``result`` beside the others of ``pack``, in place of one of the same data set and pack.

    Raises:
        DataError: the file cannot be read or written.
    """
    kept = [item for item in read_results(pack.folder) if _subject(item) != _subject(result)]
    path = pack.folder / FILE
    text = json.dumps([*kept, result], indent=1, allow_nan=False) + "\n"
    try:
        write_atomically(path, text)
    except OSError as exc:
        raise DataError(f"{path}: {exc.strerror or exc}") from exc
    return path


def _subject(result: Mapping[str, Any]) -> tuple[Any, ...]:
    return result["dataset"], result.get("data"), result.get("split"), result.get("against")
