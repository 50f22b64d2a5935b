"""What the pack of a model is of: a record in the model's folder, by which `up` knows what has changed."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import file_digest
from pathlib import Path
from typing import Any

from models.packs.folders import FORMAT_VERSION, NO_SOURCES, SOURCES_FILE
from models.text.files import companions
from models.whole_files import whole_file
from pipeline.execution.errors import InputError


@dataclass(frozen=True)
class Source:
    """A model as it was given: ``files`` of ONNX or Darknet, or the folder of a pack.

    ``recipes``: options of ``compile``, and the file of each. ``words``: other options of it, as typed.
    """

    name: str
    files: tuple[Path, ...]
    recipes: Mapping[str, Path] = field(default_factory=dict)
    words: tuple[str, ...] = ()

    @property
    def is_pack(self) -> bool:
        return self.files[0].is_dir()


def is_compiled_from(before: Mapping[str, Any], source: Source, isa: str) -> bool:
    """Return whether the pack was made of the same files, with the same options, for this target."""
    way = _options_of(source, isa)
    if {key: before.get(key) for key in way} != way:
        return False
    external = external_files_of(before)
    return before.get("files") == stats_of(source, external) or before.get(
        "digests"
    ) == _digests_of(source, external)


def external_files_of(before: Mapping[str, Any]) -> tuple[Path, ...]:
    """Return the files that those of a model refer to: weights of ONNX in files of their own."""
    return tuple(map(Path, before.get("beside", ())))


def _options_of(source: Source, isa: str) -> dict[str, Any]:
    return {
        "format_version": FORMAT_VERSION,
        "isa": isa,
        "options": [*sorted(source.recipes), *source.words],
    }


def all_files(source: Source, external: Sequence[Path]) -> tuple[Path, ...]:
    """Return the files of ``source``, its recipes, and ``external``, to which they refer."""
    recipes = (source.recipes[option] for option in sorted(source.recipes))
    tokenizer = source.recipes.get("tokenizer")
    text_files = companions(tokenizer) if tokenizer else ()
    return tuple(dict.fromkeys((*source.files, *recipes, *text_files, *external)))


def stats_of(source: Source, external: Sequence[Path]) -> list[list[Any]]:
    """Return places, sizes and times of change of files, by which equal files are known without reading."""
    try:
        stats = [(path, path.stat()) for path in all_files(source, external)]
    except OSError as exc:
        raise InputError(f"{exc.filename}: {exc.strerror or exc}") from exc
    return [[str(path.resolve()), stat.st_size, stat.st_mtime_ns] for path, stat in stats]


def _digests_of(source: Source, external: Sequence[Path]) -> list[str]:
    digests = []
    for path in all_files(source, external):
        with path.open("rb") as file:
            digests.append(file_digest(file, "sha256").hexdigest())
    return digests


def read_record(folder: Path) -> dict[str, Any] | None:
    """Return what the file of sources has; None: ``up`` has not made this pack."""
    if folder.is_symlink():
        return None
    try:
        read = json.loads((folder / SOURCES_FILE).read_bytes())
    except (OSError, ValueError):
        return None
    return read if isinstance(read, dict) else None


def record_of(source: Source, isa: str, external: Sequence[Path]) -> dict[str, Any]:
    """Return the record of a pack of ``source`` for ``isa``; ``external``: files that its own name.

    Raises:
        InputError: one of them is not there any more.
    """
    return {
        **_options_of(source, isa),
        "beside": list(map(str, external)),
        "files": stats_of(source, external),
        "digests": _digests_of(source, external),
    }


def write_record(folder: Path, record: Mapping[str, Any] | None) -> None:
    """Write the file of sources; None: it names none."""
    try:
        folder.mkdir(exist_ok=True)
        with whole_file(folder / SOURCES_FILE) as file:
            file.write(NO_SOURCES if record is None else json.dumps(record).encode())
    except OSError as exc:
        raise InputError(f"{folder / SOURCES_FILE}: {exc.strerror or exc}") from exc
