"""evaluation.json: what packs scored on data sets, beside the manifest, which never changes."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, NonNegativeInt, TypeAdapter, ValidationError

from models.datasets.samples import DataError
from models.errors import first_fault
from models.packs.pack import Pack
from models.whole_files import check_writable, write_atomically

# What a result of an evaluation holds, for commands and pages that show it.

_Part = Annotated[float, Field(ge=0, le=1)]
_Positive = Annotated[float, Field(ge=0, allow_inf_nan=False)]


class _Record(BaseModel):
    """Other fields may be beside those read: a later version has more figures."""

    model_config = ConfigDict(strict=True, extra="ignore")


class _Cell(_Record):
    truth: str
    answer: str
    count: NonNegativeInt


class _Precision(_Record):
    pictures: NonNegativeInt = 0
    map50: _Part = 0.0
    ap50: dict[str, _Part] = {}


class _Agreement(_Precision):
    compared: NonNegativeInt = 0
    top1: _Part = 0.0
    largest_difference: _Positive = 0.0


class _EvaluationResult(_Precision):
    """A result as ``evaluation.json`` has it; what was not counted is left out. Parts are from 0 to 1."""

    dataset: str
    samples: NonNegativeInt
    model: str = ""
    data: str = ""
    split: str | None = None
    against: str | None = None
    broken: list[str] = []
    not_numbers: list[str] = []
    sweep_ms: _Positive | None = None
    left_out: dict[str, NonNegativeInt] = {}
    labelled: NonNegativeInt = 0
    top1: _Part = 0.0
    top5: _Part = 0.0
    confusion: list[_Cell] = []
    agreement: _Agreement | None = None


# The file.

FILE = "evaluation.json"
_MAX_BYTES = 16 << 20
_RESULTS = TypeAdapter(list[_EvaluationResult])


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
    entries: list[dict[str, Any]] = results
    return entries


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
