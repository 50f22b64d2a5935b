"""What a manifest says of programs and quantised layers must be possible (docs/reference/pack-manifest.md).

After these checks a program reads and makes arrays that are there, of sizes that fit each other, and no
step reads what is made after it.
"""

import math
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import get_args

from models.errors import PackError
from models.network.activations import PARAMETERS, Arithmetic
from models.network.fields import Array, stretches
from models.network.operators.quantised import Quantised, QuantisedTask, Rectangle, TaskTensor
from models.network.windows import SAME
from models.packs.manifest import Manifest
from models.packs.records.pieces import (
    ElementProgram,
    ElementStep,
    Elementwise,
    Piece,
    merged_operands,
)
from models.packs.records.row_parts import RowOperator

_DTYPE = "float32"


def check_programs(path: Path, manifest: Manifest) -> None:
    """Check the programs of the manifest in ``path``, whose pieces, alternatives and rows were checked.

    Raises:
        PackError: something in them cannot be; the message names the field.
    """
    for number, program in enumerate(manifest.programs):
        _check_program(f"{path}: programs.{number}", program)
    for number, piece in enumerate(manifest.pieces):
        field = f"{path}: pieces.{number}.elementwise"
        if piece.elementwise is not None:
            if piece.resident is not None:
                raise PackError(f"{field}: a resident piece has no program")
            _check_ports(field, manifest, piece.elementwise, piece.inputs, piece.outputs)
    for where, elementwise, run in _joined(manifest):
        inputs = merged_operands([piece.inputs for piece in run])
        outputs = merged_operands([piece.outputs for piece in run])
        _check_ports(f"{path}: {where}.elementwise", manifest, elementwise, inputs, outputs)
    for number, item in enumerate(manifest.row_operators):
        if item.elementwise is not None:
            field = f"{path}: row_operators.{number}.elementwise"
            _check_row_operator(field, manifest, item, item.elementwise)


def _joined(manifest: Manifest) -> Iterator[tuple[str, Elementwise, Sequence[Piece]]]:
    """Yield the programs of joined pieces, with the fields that say them and the pieces that are joined."""
    for number, alternative in enumerate(manifest.alternatives):
        first = alternative.first_piece
        for position, join in enumerate(alternative.joined):
            run = manifest.pieces[first : first + join.n_chunks]
            first += join.n_chunks
            if join.elementwise is not None:
                yield f"alternatives.{number}.joined.{position}", join.elementwise, run


def _check_program(where: str, program: ElementProgram) -> None:
    n_values = program.n_inputs + len(program.steps)
    for number, step in enumerate(program.steps):
        field = f"{where}.steps.{number}"
        for value in step.reads:
            if value >= program.n_inputs + number:
                raise PackError(f"{field}.reads: {value} is not made before it")
        fault = _fault(step)
        if fault:
            raise PackError(f"{field}: {fault}")
    for value in program.results:
        if value >= n_values:
            raise PackError(f"{where}.results: {value} is out of range")
    if len(set(program.results)) < len(program.results):
        raise PackError(f"{where}.results: one is there twice")
    if program.steps and not program.results:
        raise PackError(f"{where}.results: none")
    read = {*program.results, *(value for step in program.steps for value in step.reads)}
    n_read = sum(value < program.n_inputs for value in read)
    if n_read < program.n_inputs:
        raise PackError(f"{where}.n_inputs: {program.n_inputs}, of which {n_read} are read")


def _fault(step: ElementStep) -> str:
    """Return why a step cannot be; empty where it can."""
    n_reads, n_numbers = len(step.reads), len(step.numbers)
    is_of_two = step.kind in get_args(Arithmetic)
    possible = [(1, 1), (2, 0)] if is_of_two else [(1, PARAMETERS.get(step.kind, 0))]
    if (n_reads, n_numbers) not in possible:
        return f"{step.kind} of {n_reads} values and {n_numbers} numbers"
    if None in step.numbers and step.kind != "clip":
        return f"{step.kind} with a number that is none"
    return ""


def _check_ports(
    where: str,
    manifest: Manifest,
    item: Elementwise,
    inputs: Sequence[Array],
    outputs: Sequence[Array],
) -> None:
    """Check that a program is there, and what it reads and makes, of sizes that fit."""
    if item.program >= len(manifest.programs):
        raise PackError(f"{where}.program: {item.program} is out of range")
    program = manifest.programs[item.program]
    for field, places, ports, count in (
        ("reads", item.reads, inputs, program.n_inputs),
        ("makes", item.makes, outputs, len(program.results)),
    ):
        if len(places) != count:
            raise PackError(f"{where}.{field}: {len(places)}, of a program with {count}")
        for place in places:
            if place >= len(ports):
                raise PackError(f"{where}.{field}: {place} is out of range")
            if ports[place].dtype != _DTYPE or ports[place].is_loose:
                raise PackError(f"{where}.{field}: {place} is not {_DTYPE} of a known size")
    if len(set(item.makes)) < len(item.makes):
        raise PackError(f"{where}.makes: one is there twice")
    shapes = {outputs[place].shape for place in item.makes}
    if len(shapes) > 1:
        raise PackError(f"{where}.makes: results of several shapes")
    for shape in shapes:
        for place in item.reads:
            if not stretches(inputs[place].shape, shape):
                fault = f"{list(inputs[place].shape)} does not stretch to {list(shape)}"
                raise PackError(f"{where}.reads: {place}: {fault}")


def _check_row_operator(
    where: str, manifest: Manifest, operator: RowOperator, item: Elementwise
) -> None:
    values = manifest.row_values
    read = [values[taken.row_value] for taken in operator.inputs]
    _check_ports(where, manifest, item, [*read, *operator.weights], [values[operator.output]])
    for place in item.reads:
        if place >= len(read):
            shape = operator.weights[place - len(read)].shape
            if shape[-2:-1] not in ((), (1,)):
                raise PackError(f"{where}.reads: {place}: {list(shape)} differs by row")
            continue
        if operator.inputs[place].window != SAME:
            raise PackError(f"{where}.reads: {place} is not read row by row")


# What a manifest says of quantised layers must be possible (docs/reference/pack-manifest.md).
#
# After these checks kernels of integers read and write no byte outside of operands and constants.

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
    """Check that each tensor is read with one meaning: it has one place and one size."""
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
