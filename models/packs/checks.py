"""What a manifest says must be possible: ranges, order, recipes (docs/reference/pack-format.md)."""

import math
from collections.abc import Mapping
from pathlib import Path

from models.detection.recipe import head_fault
from models.errors import PackError
from models.network.fields import UNKNOWN
from models.packs.alternative_checks import check_alternatives
from models.packs.bottleneck_checks import check_bottlenecks
from models.packs.manifest import Manifest
from models.packs.program_checks import check_programs
from models.packs.quantised_checks import check_quantised
from models.packs.records.network import WindowProduct
from models.packs.records.pieces import Operand, Piece, Value
from models.packs.row_checks import check_rows
from models.packs.span_checks import check_spans
from models.segmentation.recipe import segmentation_fault


def check_manifest(path: Path, manifest: Manifest) -> None:
    """Check spans, values, pieces and recipes of the manifest in ``path``.

    Raises:
        PackError: something in it cannot be; the message names the field.
    """
    check_spans(path, manifest)
    _check_values(path, manifest)
    _check_ports(path, manifest)
    _check_pieces(path, manifest)
    check_alternatives(path, manifest)
    check_rows(path, manifest)
    check_bottlenecks(path, manifest)
    check_programs(path, manifest)
    _check_network(path, manifest)
    check_quantised(path, manifest)
    _check_loose_order(path, manifest)
    _check_recipes(path, manifest)


def _check_values(path: Path, manifest: Manifest) -> None:
    values = manifest.values
    ends: set[int] = set()  # values whose parents were followed to the last
    for number, value in enumerate(values):
        where = f"{path}: values.{number}"
        parent = value.parent
        if parent is not None and parent < len(values):
            room = values[parent].n_bytes
            if value.offset + value.n_bytes > room:
                raise PackError(f"{where}: does not fit in its parent ({room} bytes)")
            if value.is_loose or values[parent].is_loose:
                raise PackError(f"{where}.parent: {parent}: a size that no one knows lies nowhere")
        seen = {number}
        while parent is not None and parent not in ends:
            if parent >= len(values) or parent in seen:
                raise PackError(f"{where}.parent: {parent} is out of range or leads back")
            seen.add(parent)
            parent = values[parent].parent
        ends |= seen


def _check_ports(path: Path, manifest: Manifest) -> None:
    values = manifest.values
    for kind, ports in (("inputs", manifest.inputs), ("outputs", manifest.outputs)):
        for number, port in enumerate(ports):
            held = values[port.value] if port.value < len(values) else None
            if held is None or (held.dtype, held.shape) != (port.dtype, port.shape):
                raise PackError(f"{path}: {kind}.{number}.value: {port.value} does not hold it")
    for number, port in enumerate(manifest.inputs):
        if UNKNOWN in port.shape:
            raise PackError(f"{path}: inputs.{number}.shape: {list(port.shape)} is not known")
        try:
            port.default_array()
        except ValueError as exc:
            raise PackError(f"{path}: inputs.{number}.default: {exc}") from exc


def _check_pieces(path: Path, manifest: Manifest) -> None:
    last_span = -1
    unused = {number for number, span in enumerate(manifest.spans) if not span.resident}
    for number, piece in enumerate(manifest.pieces):
        where = f"{path}: pieces.{number}"
        if piece.graph >= len(manifest.graphs):
            raise PackError(f"{where}.graph: {piece.graph} is out of range")
        if piece.n_spans != 1:
            raise PackError(f"{where}.n_spans: {piece.n_spans}: only joined pieces have several")
        if piece.span is not None:
            if piece.span >= len(manifest.spans) or piece.span <= last_span:
                raise PackError(f"{where}.span: {piece.span} is out of range or out of order")
            if manifest.spans[piece.span].resident:
                raise PackError(f"{where}.span: {piece.span} is resident, not streamed")
            last_span = piece.span
            unused.remove(piece.span)
        if not piece.outputs:
            raise PackError(f"{where}.outputs: none")
        _check_operands(where, manifest, piece)
    if unused:
        raise PackError(f"{path}: spans.{min(unused)}: no piece streams it")
    for number, layer in enumerate(manifest.layers):
        if not layer.first_piece < layer.end_piece <= len(manifest.pieces):
            raise PackError(f"{path}: layers.{number}: its pieces are out of range")


def _check_operands(where: str, manifest: Manifest, piece: Piece) -> None:
    for operand in (*piece.inputs, *piece.outputs):
        _check_operand(where, manifest, piece.span, operand)
        if operand.is_loose:
            _check_loose(where, manifest, piece, operand)
        if operand.kind == "span" and piece.resident is not None:
            raise PackError(
                f"{where}: reads span {operand.index}; a resident piece has its weights"
            )
    if piece.resident is not None and piece.span is not None:
        raise PackError(f"{where}.span: {piece.span}: a resident piece streams nothing")
    if any(operand.kind == "span" for operand in piece.outputs):
        raise PackError(f"{where}.outputs: a piece cannot write to weights")


def _check_loose(where: str, manifest: Manifest, piece: Piece, operand: Operand) -> None:
    """Check that a tensor without a place passes whole to or from a resident piece."""
    if piece.resident is None:
        raise PackError(f"{where}: {operand.kind} {operand.index}: only a resident piece takes it")
    held = manifest.values[operand.index] if operand.kind == "value" else None
    if held is None or operand.offset or (held.dtype, held.shape) != (operand.dtype, operand.shape):
        raise PackError(f"{where}: {operand.kind} {operand.index} does not hold it")


def _check_loose_order(path: Path, manifest: Manifest) -> None:
    """Check that what has no place in the arena is made before it is read or answered."""
    made = {port.value for port in manifest.inputs}
    for number, piece in enumerate(manifest.pieces):
        for operand in piece.inputs:
            if operand.is_loose and operand.index not in made:
                raise PackError(
                    f"{path}: pieces.{number}: reads value {operand.index} before it is made"
                )
        made.update(operand.index for operand in piece.outputs if operand.kind == "value")
    for number, port in enumerate(manifest.outputs):
        if port.is_loose and port.value not in made:
            raise PackError(f"{path}: outputs.{number}.value: {port.value} is never made")


def _check_operand(where: str, manifest: Manifest, own: int | None, operand: Operand) -> None:
    table = manifest.values if operand.kind == "value" else manifest.spans
    if operand.index >= len(table):
        raise PackError(f"{where}: {operand.kind} {operand.index} is out of range")
    if operand.kind == "value":
        room = manifest.values[operand.index].n_bytes
    else:
        span = manifest.spans[operand.index]
        room = span.length
        if not operand.n_bytes:  # ONNX Runtime's blocked convolution never ends on such weights
            raise PackError(f"{where}: nothing of span {operand.index}: {list(operand.shape)}")
        if operand.index != own and not span.resident:
            raise PackError(f"{where}: reads span {operand.index}, which is not its own")
    if operand.offset + operand.n_bytes > room:
        raise PackError(
            f"{where}: bytes [{operand.offset}, +{operand.n_bytes}) are outside "
            f"{operand.kind} {operand.index} ({room} bytes)"
        )


def _check_recipes(path: Path, manifest: Manifest) -> None:
    inputs = [(port.dtype, port.shape) for port in manifest.required_inputs]
    if manifest.preprocess is not None and inputs != [("float32", manifest.preprocess.shape)]:
        raise PackError(f"{path}: preprocess: its tensor is not the input")
    outputs = {port.name: (port.dtype, port.shape) for port in manifest.outputs}
    detection, segmentation = manifest.detection, manifest.segmentation
    for fault in (
        detection and head_fault(detection, outputs),
        segmentation and segmentation_fault(segmentation, outputs),
    ):
        if fault is not None:
            raise PackError(f"{path}: {fault}")
    if manifest.classification is None:
        return
    scores = {port.name: math.prod(port.shape) for port in manifest.outputs if not port.is_loose}
    count = scores.get(manifest.classification.output)
    if count is None:
        raise PackError(f"{path}: classification.output: no such output")
    if len(manifest.classification.labels) not in (0, count):
        raise PackError(f"{path}: classification.labels: not one for each of {count} scores")


_RANK = 4


def _check_network(path: Path, manifest: Manifest) -> None:
    """Check what is said of nodes of model.onnx, by the names of values."""
    values = {value.name: value for value in manifest.values if not value.is_loose}
    for number, product in enumerate(manifest.window_products):
        _check_window_product(f"{path}: window_products.{number}", product, values)
    for number, softmax in enumerate(manifest.turned_softmaxes):
        where = f"{path}: turned_softmaxes.{number}"
        source, output = (values.get(name) for name in (softmax.source, softmax.output))
        if source is None or output is None or source.shape != output.shape:
            raise PackError(
                f"{where}: {softmax.source!r} and {softmax.output!r} are not of one size"
            )
        if softmax.axis >= len(source.shape):
            raise PackError(f"{where}.axis: {softmax.axis}: there is none of {list(source.shape)}")
    for name, count in manifest.used_channels.items():
        shape = values[name].shape if name in values else ()
        filled = shape[1] - count if len(shape) == _RANK else 0
        if not 0 < filled < manifest.target.block:
            raise PackError(
                f"{path}: used_channels.{name}: {count}: others cannot fill a block of {list(shape)}"
            )


def _check_window_product(where: str, item: WindowProduct, values: Mapping[str, Value]) -> None:
    """Check that a product on windows is a convolution."""
    for name in (item.source, item.output):
        if name not in values:
            raise PackError(f"{where}: {name!r} is no value of a known size")
    source, output = (values[name].shape for name in (item.source, item.output))
    if {len(source), len(output)} != {_RANK} or source[0] != output[0]:
        raise PackError(f"{where}: {list(source)} and {list(output)} are no images")
    if any(axis.factor != 1 for axis in item.windows):
        raise PackError(f"{where}.windows: no convolution makes elements that repeat")
    made = [axis.made(n) for axis, n in zip(item.windows, source[1:3], strict=True)]
    if made != list(output[1:3]):
        raise PackError(f"{where}.windows: they make {made} pixels, not {list(output[1:3])}")
