"""What a manifest says of quantised layers must be possible (docs/reference/pack-manifest.md).

After these checks kernels of integers read and write no byte outside of operands and constants.
"""

import math
from pathlib import Path

from models.errors import PackError
from models.network.fields import Array
from models.network.operators.quantised import Quantised, QuantisedTask, Rectangle, TaskTensor
from models.packs.manifest import Manifest
from models.packs.records.pieces import Piece

_IMAGE = 4


def check_quantised(path: Path, manifest: Manifest) -> None:
    """Check the quantised layers of the manifest in ``path``, whose pieces were checked.

    Raises:
        PackError: something in them cannot be; the message names the field.
    """
    if manifest.quantised and manifest.target.capability is not None:
        raise PackError(f"{path}: quantised: a GPU has no kernels for them")
    for number, task in enumerate(manifest.quantised):
        if fault := task.fault():
            raise PackError(f"{path}: quantised.{number}: {fault}")
        _check_kinds(f"{path}: quantised.{number}", task)
    for number, piece in enumerate(manifest.pieces):
        if piece.quantised is not None:
            _check_piece(f"{path}: pieces.{number}.quantised", manifest, piece, piece.quantised)
    for number, alternative in enumerate(manifest.alternatives):
        run = manifest.pieces[alternative.first_piece : alternative.end_piece]
        if any(piece.quantised is not None for piece in run):
            raise PackError(f"{path}: alternatives.{number}: quantised layers have no chunks")


def _check_kinds(where: str, task: Quantised) -> None:
    """Check that each tensor is read as one thing: it has one place and one size."""
    kinds: dict[int, tuple[str, int]] = {}
    if isinstance(task, QuantisedTask) and task.rectangle is not None:
        kinds[task.source] = ("planes of a request", 0)
    for tensor in task.tensors():
        kind = (tensor.dtype, tensor.count)
        if kinds.setdefault(tensor.number, kind) != kind:
            raise PackError(f"{where}: {tensor.what}: {tensor.number} is something else, too")


def _check_piece(where: str, manifest: Manifest, piece: Piece, number: int) -> None:
    """Check that operands and constants of ``piece`` are as task ``number`` reads and makes them."""
    if number >= len(manifest.quantised):
        raise PackError(f"{where}: {number} is out of range")
    if piece.resident is not None:
        raise PackError(f"{where}: a resident piece runs as it is")
    task = manifest.quantised[number]
    if len(piece.outputs) != 1:
        raise PackError(f"{where}: {len(piece.outputs)} outputs, not one")
    if not _fits(piece.outputs[0], task.result.dtype, math.prod(task.result.shape)):
        raise PackError(f"{where}: its output is not {task.result.dtype}{list(task.result.shape)}")
    if isinstance(task, QuantisedTask) and task.rectangle is not None:
        _check_rectangle(where, task, task.rectangle, piece)
    room = manifest.graphs[piece.graph].length
    for tensor in task.tensors():
        if tensor.number < len(piece.inputs):
            if not _fits(piece.inputs[tensor.number], tensor.dtype, tensor.count):
                raise PackError(
                    f"{where}: {tensor.what}: input {tensor.number} is not {tensor.dtype}, "
                    f"{tensor.count} of them"
                )
        else:
            _check_constant(where, task, tensor, len(piece.inputs), room)


def _fits(array: Array, dtype: str, count: int) -> bool:
    held = array.dtype == dtype and not array.is_loose
    return held and math.prod(array.shape) == count


def _check_constant(
    where: str, task: Quantised, tensor: TaskTensor, inputs: int, room: int
) -> None:
    """Check a tensor behind ``inputs`` others, of a graph of ``room`` bytes."""
    place = tensor.number - inputs
    if tensor.passes or place >= len(task.constants):
        raise PackError(f"{where}: {tensor.what}: {tensor.number} is out of range")
    if task.constants[place] + tensor.n_bytes > room:
        raise PackError(f"{where}: {tensor.what}: bytes outside of its graph ({room} bytes)")


def _check_rectangle(where: str, task: QuantisedTask, of: Rectangle, piece: Piece) -> None:
    first = task.layers[0]
    planes = piece.inputs[task.source] if piece.inputs else None
    if planes is None or planes.dtype != "float32" or len(planes.shape) != _IMAGE:
        raise PackError(f"{where}: source: no planes of float32")
    ends = (of.first_row + first.windows.size[0], of.first_column + first.windows.size[1])
    if planes.shape[:2] != (1, first.channels) or any(
        end > size for end, size in zip(ends, planes.shape[2:], strict=True)
    ):
        raise PackError(f"{where}: source: its rectangle ends at {list(ends)} of {planes.shape}")
