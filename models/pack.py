"""Open a pack and trust nothing in it (docs/pack-format.md, "Reading")."""

import json
import math
import re
from dataclasses import dataclass
from pathlib import Path

from pydantic import ValidationError

from models.checksum import checksum
from models.errors import PackError
from models.manifest import FORMAT_VERSION, SPAN_ALIGNMENT, Manifest, Operand
from models.target import Target, host_target

FILES = ("model.onnx", "pieces.bin", "weights.bin")
_MAX_MANIFEST_BYTES = 64 << 20
_VERSION = re.compile("[1-9][0-9]*")


@dataclass(frozen=True)
class Pack:
    """A checked pack: its folder, its manifest, and the serialised pieces."""

    folder: Path
    manifest: Manifest
    graphs: tuple[bytes, ...]

    @property
    def name(self) -> str:
        return self.manifest.name

    @property
    def version(self) -> str:
        return self.folder.name

    @property
    def weights_path(self) -> Path:
        return self.folder / "weights.bin"

    @property
    def model_path(self) -> Path:
        return self.folder / "model.onnx"


def versions(folder: Path) -> list[Path]:
    """Return the version folders of a model, lowest first; other names than 1, 2, ... are no packs."""
    found = [path for path in folder.iterdir() if _VERSION.fullmatch(path.name) and path.is_dir()]
    return sorted(found, key=lambda path: int(path.name))


def find_pack(path: Path) -> Path:
    """Return the pack folder that ``path`` means: itself, or its latest version.

    Raises:
        PackError: there is no pack.
    """
    if not path.is_dir():
        raise PackError(f"{path}: no such folder")
    if path.resolve().name.startswith("."):
        raise PackError(f"{path}: not a pack: its name starts with a dot")
    if (path / "manifest.json").exists():
        return path
    found = versions(path)
    if not found:
        raise PackError(f"{path}: no pack in it (a pack is NAME/VERSION with a manifest.json)")
    return found[-1]


def open_pack(path: Path, target: Target | None = None) -> Pack:
    """Open and check the pack in ``path`` (NAME/VERSION, or NAME for its latest version).

    Weights are not read here: the checksum of each span is verified when it is first read.

    Raises:
        PackError: something is not as the format says; the message names file and field.
    """
    folder = find_pack(path)
    manifest = _manifest(folder / "manifest.json")
    host = target or host_target()
    if not manifest.target.runs_on(host):
        raise PackError(
            f"{folder / 'manifest.json'}: target: compiled for {manifest.target.isa} "
            f"(block {manifest.target.block}), this machine is {host.isa} (block {host.block}); "
            "compile the source again here"
        )
    _check_files(folder, manifest)
    _check_spans(folder, manifest)
    _check_values(folder, manifest)
    _check_pieces(folder, manifest)
    _check_recipes(folder, manifest)
    return Pack(folder, manifest, _graphs(folder, manifest))


def _manifest(path: Path) -> Manifest:
    if path.exists():
        _check_inside(path)
    try:
        if path.stat().st_size > _MAX_MANIFEST_BYTES:
            raise PackError(f"{path}: larger than {_MAX_MANIFEST_BYTES} bytes")
        document = json.loads(path.read_bytes())
    except OSError as exc:
        raise PackError(f"{path}: {exc.strerror or exc}") from exc
    except (ValueError, RecursionError) as exc:
        raise PackError(f"{path}: not JSON: {exc}") from exc
    version = document.get("format_version", FORMAT_VERSION) if isinstance(document, dict) else None
    if isinstance(version, int) and version > FORMAT_VERSION:
        raise PackError(
            f"{path}: format_version: {version} is newer than {FORMAT_VERSION}, "
            "the newest that this Layerstream reads"
        )
    try:
        return Manifest.model_validate_json(json.dumps(document))
    except ValidationError as exc:
        first = exc.errors()[0]
        field = ".".join(str(part) for part in first["loc"])
        raise PackError(f"{path}: {field}: {first['msg']}") from exc


def _check_inside(file: Path) -> None:
    """Check that ``file`` is a plain file and no link that leaves its folder."""
    if not file.is_file() or not file.resolve().is_relative_to(file.parent.resolve()):
        raise PackError(f"{file}: missing, or not a file inside the pack")


def _check_files(folder: Path, manifest: Manifest) -> None:
    path = folder / "manifest.json"
    if set(manifest.files) != set(FILES):
        raise PackError(f"{path}: files: expected {', '.join(FILES)}, got {list(manifest.files)}")
    for name, record in manifest.files.items():
        file = folder / name
        _check_inside(file)
        size = file.stat().st_size
        if size != record.n_bytes:
            state = "truncated" if size < record.n_bytes else "too long"
            raise PackError(f"{file}: {state}: {size} bytes, the manifest says {record.n_bytes}")


def _check_spans(folder: Path, manifest: Manifest) -> None:
    end = 0
    path = folder / "manifest.json"
    for number, span in enumerate(manifest.spans):
        where = f"{path}: spans.{number}"
        if span.offset % SPAN_ALIGNMENT or span.length % SPAN_ALIGNMENT:
            raise PackError(f"{where}: [{span.offset}, +{span.length}) is not on {SPAN_ALIGNMENT}")
        if span.offset < end:
            raise PackError(f"{where}: overlaps the span before it, which ends at {end}")
        if span.offset > end:
            raise PackError(f"{where}: leaves a hole from {end} to {span.offset}")
        if span.resident and number and not manifest.spans[number - 1].resident:
            raise PackError(f"{where}: resident, after one that is not")
        end = span.offset + span.length
        size = manifest.files["weights.bin"].n_bytes
        if end > size:
            raise PackError(f"{where}: ends at {end}, out of range of weights.bin ({size} bytes)")
    if end != manifest.files["weights.bin"].n_bytes:
        raise PackError(f"{path}: spans: the last one ends at {end}, not at the end of weights.bin")


def _check_values(folder: Path, manifest: Manifest) -> None:
    path = folder / "manifest.json"
    values = manifest.values
    for number, value in enumerate(values):
        where = f"{path}: values.{number}"
        seen = {number}
        parent = value.parent
        if parent is not None and parent < len(values):
            room = values[parent].n_bytes
            if value.offset + value.n_bytes > room:
                raise PackError(f"{where}: does not fit in its parent ({room} bytes)")
        while parent is not None:
            if parent >= len(values) or parent in seen:
                raise PackError(f"{where}.parent: {parent} is out of range or leads back")
            seen.add(parent)
            parent = values[parent].parent
    for kind, ports in (("inputs", manifest.inputs), ("outputs", manifest.outputs)):
        for number, port in enumerate(ports):
            held = values[port.value] if port.value < len(values) else None
            if held is None or (held.dtype, held.shape) != (port.dtype, port.shape):
                raise PackError(f"{path}: {kind}.{number}.value: {port.value} does not hold it")


def _check_pieces(folder: Path, manifest: Manifest) -> None:
    path = folder / "manifest.json"
    last_span = -1
    unused = {number for number, span in enumerate(manifest.spans) if not span.resident}
    for number, piece in enumerate(manifest.pieces):
        where = f"{path}: pieces.{number}"
        if piece.graph >= len(manifest.graphs):
            raise PackError(f"{where}.graph: {piece.graph} is out of range")
        if piece.span is not None:
            if piece.span >= len(manifest.spans) or piece.span <= last_span:
                raise PackError(f"{where}.span: {piece.span} is out of range or out of order")
            if manifest.spans[piece.span].resident:
                raise PackError(f"{where}.span: {piece.span} is resident, not streamed")
            last_span = piece.span
            unused.remove(piece.span)
        for operand in (*piece.inputs, *piece.outputs):
            _check_operand(where, manifest, piece.span, operand)
        if any(operand.kind == "span" for operand in piece.outputs):
            raise PackError(f"{where}.outputs: a piece cannot write to weights")
    if unused:
        raise PackError(f"{path}: spans.{min(unused)}: no piece streams it")
    for number, layer in enumerate(manifest.layers):
        if not layer.first_piece < layer.end_piece <= len(manifest.pieces):
            raise PackError(f"{path}: layers.{number}: its pieces are out of range")


def _check_operand(where: str, manifest: Manifest, own: int | None, operand: Operand) -> None:
    table = manifest.values if operand.kind == "value" else manifest.spans
    if operand.index >= len(table):
        raise PackError(f"{where}: {operand.kind} {operand.index} is out of range")
    if operand.kind == "value":
        room = manifest.values[operand.index].n_bytes
    else:
        span = manifest.spans[operand.index]
        room = span.length
        if operand.index != own and not span.resident:
            raise PackError(f"{where}: reads span {operand.index}, which is not its own")
    if operand.offset + operand.n_bytes > room:
        raise PackError(
            f"{where}: bytes [{operand.offset}, +{operand.n_bytes}) are outside "
            f"{operand.kind} {operand.index} ({room} bytes)"
        )


def _check_recipes(folder: Path, manifest: Manifest) -> None:
    path = folder / "manifest.json"
    inputs = [(port.dtype, port.shape) for port in manifest.inputs]
    if manifest.preprocess is not None and inputs != [("float32", manifest.preprocess.shape)]:
        raise PackError(f"{path}: preprocess: its tensor is not the input")
    if manifest.classification is None:
        return
    scores = {port.name: math.prod(port.shape) for port in manifest.outputs}
    count = scores.get(manifest.classification.output)
    if count is None:
        raise PackError(f"{path}: classification.output: no such output")
    if len(manifest.classification.labels) not in (0, count):
        raise PackError(f"{path}: classification.labels: not one for each of {count} scores")


def _graphs(folder: Path, manifest: Manifest) -> tuple[bytes, ...]:
    path = folder / "pieces.bin"
    data = path.read_bytes()
    if checksum(data) != manifest.files["pieces.bin"].checksum:
        raise PackError(f"{path}: damaged: its checksum is not the manifest's")
    for number, graph in enumerate(manifest.graphs):
        if graph.offset + graph.length > len(data):
            raise PackError(f"{folder / 'manifest.json'}: graphs.{number}: out of range")
    return tuple(data[graph.offset : graph.offset + graph.length] for graph in manifest.graphs)
