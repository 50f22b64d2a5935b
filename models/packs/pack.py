"""Open a pack and check all that is in it (docs/reference/pack-format.md, "Reading")."""

import contextlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from models.errors import PackError, absent
from models.packs.checks import check_manifests
from models.packs.folders import FORMAT_VERSION, find_pack
from models.packs.manifest import (
    TOKENIZER,
    Manifest,
    checksum,
    read_manifest,
    without_checksum,
)
from models.packs.names import MANIFEST, SHAPE_FILES, shape_file
from models.packs.records.ports import Port
from models.packs.target import Target, host_target
from models.records import FieldError, NotJsonError, parse
from models.runtime.heap import no_collections

if TYPE_CHECKING:
    from models.packs.shapes import PackShapes

GRAPH = "model.onnx"
#: What all shapes of a pack have in common.
STORE_FILES = ("pieces.bin", "weights.bin")
FILES = (GRAPH, *STORE_FILES)
_MAX_MANIFEST_BYTES = 64 << 20
_MAX_NAME = 255


@dataclass(frozen=True)
class Pack:
    """A checked pack: its folder, its manifest, and the serialised pieces.

    ``others``: the pack in its other shapes, which have the same files, from the next smaller one on.
    ``shape_index``: of the shape, counted from the largest.
    """

    folder: Path
    manifest: Manifest
    graphs: tuple[bytes, ...]
    others: tuple["Pack", ...] = ()
    shape_index: int = 0

    @property
    def name(self) -> str:
        return self.manifest.name

    @cached_property  # every answer says it, and to take a path apart takes as long as JSON
    def version(self) -> str:
        return self.folder.name

    @property
    def path(self) -> Path:
        """The file that says what it is; with it a shape is opened alone."""
        return self.folder / shape_file(self.shape_index)

    @property
    def inputs(self) -> tuple[Port, ...]:
        """Its inputs, with UNKNOWN where its shapes differ."""
        return self.shapes.inputs if self.others else self.manifest.inputs

    @property
    def outputs(self) -> tuple[Port, ...]:
        """Its outputs, with UNKNOWN where its shapes differ."""
        return self.shapes.outputs if self.others else self.manifest.outputs

    @cached_property
    def shapes(self) -> "PackShapes":
        """Which of its shapes a request has."""
        from models.packs.shapes import PackShapes  # what most packs have no use for

        return PackShapes((self.manifest, *(other.manifest for other in self.others)))

    @property
    def weights_path(self) -> Path:
        return self.folder / "weights.bin"

    @property
    def model_path(self) -> Path:
        """The whole graph, for other runtimes; there is none where they could not read its weights."""
        return self.folder / GRAPH


@no_collections()
def open_pack(path: Path, target: Target | None = None, recompile: bool = False) -> Pack:
    """Open and check the pack in ``path`` (NAME/VERSION, or NAME for its latest version), to run it.

    Of a pack of several shapes the file of one (NAME/VERSION/shape-1.json) is that shape alone.
    Weights are not read here: the checksum of each span is verified when it is first read.

    Args:
        path: of the pack.
        target: what it shall run on; None: this machine's CPU.
        recompile: take a pack for CUDA that was compiled for another compute capability than the target's.

    Raises:
        PackError: something is not as the format says, or it was compiled for another target; the message
            names file and field.
    """
    folder, shape = _located(path)
    manifest = _manifest(folder / MANIFEST)
    host = target or host_target()
    if not manifest.target.runs_on(host, recompile):
        raise PackError(f"{folder / MANIFEST}: target: {_other(folder, manifest, host)}")
    return _opened(folder, manifest, shape)


@no_collections()
def read_pack(path: Path) -> Pack:
    """Open and check a pack of any target as ``open_pack`` does, to look at it.

    Raises:
        PackError: something is not as the format says; the message names file and field.
    """
    folder, shape = _located(path)
    return _opened(folder, _manifest(folder / MANIFEST), shape)


def _located(path: Path) -> tuple[Path, int | None]:
    """Return the folder of the pack that ``path`` means, and the index of its shape; None: all of them."""
    names = (MANIFEST, *SHAPE_FILES)
    if path.name in names and path.is_file():
        return find_pack(path.parent), names.index(path.name)
    return find_pack(path), None


def _opened(folder: Path, manifest: Manifest, shape: int | None) -> Pack:
    """Return the pack of ``manifest``, or its ``shape`` of that index alone, when all are checked."""
    _check_files(folder, manifest)
    others = {folder / name: _shape(folder / name, manifest) for name in shape_files(manifest)}
    manifests = {folder / MANIFEST: manifest, **others}
    check_manifests(manifests)
    data = _pieces(folder, manifest)
    packs = [
        Pack(folder, shape_manifest, _graphs(path, shape_manifest, data), shape_index=index)
        for index, (path, shape_manifest) in enumerate(manifests.items())
    ]
    if shape is None:
        return replace(packs[0], others=tuple(packs[1:]))
    if shape >= len(packs):
        raise PackError(f"{folder / shape_file(shape)}: of no shape that {MANIFEST} has")
    return packs[shape]


def shape_files(manifest: Manifest) -> list[str]:
    """Return the files of the smaller shapes of a pack, whose ``manifest`` lists them."""
    return [name for name in SHAPE_FILES if name in manifest.files]


def _shape(path: Path, first: Manifest) -> Manifest:
    """Return what is in ``path``, which the manifest ``first`` of the pack lists."""
    text = _text(path)
    if checksum(text) != first.files[path.name].checksum:
        raise _damaged(path, f"its checksum is not that of {MANIFEST}")
    shape = _parsed(path, text)
    _check_listed(path, shape, STORE_FILES)
    return shape


def _other(folder: Path, manifest: Manifest, host: Target) -> str:
    """Return why a pack does not run on ``host``, and what to do about it."""
    target = manifest.target
    kinds = [target.capability is not None, host.capability is not None]
    if target.exact_weights > host.exact_weights:
        return (
            f"its 8-bit weights up to {target.exact_weights} need a processor with dot products; compile "
            "the source again here"
        )
    if not any(kinds):
        return (
            f"compiled for {target.isa} (block {target.block}), this machine is {host.isa} "
            f"(block {host.block}); compile the source again here"
        )
    both = f"compiled for {target.isa}, the device is {host.isa}"
    if all(kinds):
        return f"{both}; compile again with --target {host.isa}, or use --recompile"
    command = f"layerstream compile {manifest.source.file} -o {folder.parent} --target {host.isa}"
    return f"{both}; compile the source again: {command}"


def _manifest(path: Path) -> Manifest:
    if path.exists():
        _check_inside(path)
    return _parsed(path, _text(path))


def _text(path: Path) -> bytes:
    try:
        if path.stat().st_size > _MAX_MANIFEST_BYTES:
            raise PackError(f"{path}: larger than {_MAX_MANIFEST_BYTES} bytes")
        return path.read_bytes()
    except OSError as exc:
        raise PackError(f"{path}: {exc.strerror or exc}") from exc


def _parsed(path: Path, text: bytes) -> Manifest:
    text, said = without_checksum(text)
    if said and checksum(text) != said:
        raise _damaged(path, "its checksum is another")
    try:
        if said:
            return read_manifest(text)
        _check_version(path, parse(text))
    except NotJsonError as exc:
        raise PackError(f"{path}: {exc}") from exc
    except FieldError as exc:
        # A fault of a field may come before one of the text.
        with contextlib.suppress(NotJsonError):
            _check_version(path, parse(text))
        raise PackError(f"{path}: {exc}") from exc
    raise _damaged(path, "it has no checksum")


def _damaged(path: Path, why: str) -> PackError:
    return PackError(f"{path}: damaged: {why}; copy the pack again, or compile its source again")


def _check_version(path: Path, document: Any) -> None:
    """Refuse what another Layerstream wrote, whatever else is in it."""
    if not isinstance(document, dict):
        raise PackError(f"{path}: not a JSON object")
    version = document.get(
        "format_version", 1
    )  # the first version of the format did not say its number
    if type(version) is not int:
        raise PackError(f"{path}: format_version: not a whole number")
    if version > FORMAT_VERSION:
        raise PackError(
            f"{path}: format_version: {version} is newer than {FORMAT_VERSION}, "
            "the newest that this Layerstream reads"
        )
    if version < FORMAT_VERSION:
        folder = path.parent
        number = f" --version {folder.name}" if folder.name != "1" else ""
        raise PackError(
            f"{path}: format_version: {version} is older than {FORMAT_VERSION}; compile it again, "
            "with the options that it was made with (labels, recipes, --precision ...): "
            f"layerstream compile {_source_name(document)} -o {folder.parent}{number} --force"
        )


def _source_name(document: Mapping[str, Any]) -> str:
    """Return what a manifest that was not checked says it was made of, where that is a name."""
    record = document.get("source")
    name = record.get("file") if isinstance(record, dict) else None
    sound = isinstance(name, str) and name.isprintable() and 0 < len(name) <= _MAX_NAME
    return str(name) if sound else "SOURCE.onnx"


def _check_inside(file: Path) -> None:
    """Check that ``file`` is a plain file and no link that leaves its folder."""
    if not file.is_file() or not file.resolve().is_relative_to(file.parent.resolve()):
        cause = None if file.exists() else absent(file)
        raise PackError(f"{file}: missing, or not a file inside the pack") from cause


def _check_files(folder: Path, manifest: Manifest) -> None:
    files = [name for name in FILES if name != GRAPH or not manifest.expands]
    # Smaller shapes are numbered without a gap.
    files += SHAPE_FILES[: len(shape_files(manifest))]
    _check_listed(folder / MANIFEST, manifest, files)
    for name, record in manifest.files.items():
        file = folder / name
        _check_inside(file)
        size = file.stat().st_size
        if size != record.n_bytes:
            state = "truncated" if size < record.n_bytes else "too long"
            raise PackError(f"{file}: {state}: {size} bytes, the manifest says {record.n_bytes}")


def _check_listed(path: Path, manifest: Manifest, files: Sequence[str]) -> None:
    """Check that the manifest in ``path`` has these ``files``, and a tokenizer where it takes texts."""
    expected = [*files, *([TOKENIZER] if manifest.text is not None else [])]
    if set(manifest.files) != set(expected):
        raise PackError(
            f"{path}: files: expected {', '.join(expected)}, got {list(manifest.files)}"
        )


def read_tokenizer(pack: Pack) -> bytes:
    """Return the file of the tokenizer of a ``pack`` that takes texts.

    Raises:
        PackError: it is damaged, or cannot be read.
    """
    path = pack.folder / TOKENIZER
    try:
        data = path.read_bytes()
    except OSError as exc:
        raise PackError(f"{path}: {exc.strerror or exc}") from exc
    if checksum(data) != pack.manifest.files[TOKENIZER].checksum:
        raise PackError(f"{path}: damaged: its checksum is not the manifest's")
    return data


def _pieces(folder: Path, manifest: Manifest) -> bytes:
    path = folder / "pieces.bin"
    data = path.read_bytes()
    if checksum(data) != manifest.files["pieces.bin"].checksum:
        raise PackError(f"{path}: damaged: its checksum is not the manifest's")
    return data


def _graphs(path: Path, manifest: Manifest, data: bytes) -> tuple[bytes, ...]:
    """Return the graphs that the manifest in ``path`` has of ``data``."""
    for number, graph in enumerate(manifest.graphs):
        if graph.offset + graph.length > len(data):
            raise PackError(f"{path}: graphs.{number}: out of range")
    return tuple(data[graph.offset : graph.offset + graph.length] for graph in manifest.graphs)


def added_file_bytes(pack: Pack) -> list[int]:
    """Return what each shape of ``pack`` adds to its files: what no larger one has, and its record."""
    spans: set[int] = set()
    graphs: set[int] = set()
    added = []
    for shape in (pack, *pack.others):
        shape_spans = {span.file_offset: span.file_length for span in shape.manifest.spans}
        shape_graphs = {graph.offset: graph.length for graph in shape.manifest.graphs}
        n_bytes = sum(shape_spans[offset] for offset in shape_spans.keys() - spans)
        n_bytes += sum(shape_graphs[offset] for offset in shape_graphs.keys() - graphs)
        added.append(n_bytes + shape.path.stat().st_size)
        spans.update(shape_spans)
        graphs.update(shape_graphs)
    return added
