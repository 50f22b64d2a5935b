"""Rough times of a core that nobody measured: of kernels by what they multiply and touch, and of reads.

Only their proportions decide.
"""

import math

from models.packs.records.pieces import Piece
from pipeline.program.program import Program

MULTIPLICATIONS_A_SECOND = 30e9
BYTES_A_SECOND = 6e9
LAUNCH_SECONDS = 4e-6
COPY_SECONDS = 2e-6
#: How many such cores compute as fast as a usual server's two threads with AVX-512.
CORES = 4
#: What a launch, or a phase of rows, takes beside its kernels: Python, and a pool of threads to wake.
WAKE_SECONDS = 20e-6
#: Weights that a row operator went through a moment ago.
CACHED_BYTES_A_SECOND = 30e9
#: What a disk reads.
READ_BYTES_A_SECOND = 1.5e9
#: What a read takes beside its bytes, where a kernel waits for it.
READ_SECONDS = 100e-6


def piece_seconds(program: Program) -> tuple[float, ...]:
    """Return about how long each of the finest pieces takes; made once."""
    return program.made(_piece_seconds)


def _piece_seconds(program: Program) -> tuple[float, ...]:
    return tuple(map(_seconds, program.pieces))


def _seconds(piece: Piece) -> float:
    operands = (*piece.inputs, *piece.outputs)
    n_bytes = sum(operand.n_bytes for operand in operands if operand.kind == "value")
    multiplied = multiplications(piece) / MULTIPLICATIONS_A_SECOND
    return LAUNCH_SECONDS + multiplied + n_bytes / BYTES_A_SECOND


def multiplications(piece: Piece) -> int:
    """Return about how often ``piece`` multiplies: each of its weights for each place of its output."""
    made = sum(math.prod(operand.shape) for operand in piece.outputs if not operand.is_loose)
    return sum(
        math.prod(weights.shape) * _places(made, weights.shape)
        for weights in piece.inputs
        if weights.kind == "span" and len(weights.shape) > 1
    )


def _places(made: int, weights: tuple[int, ...]) -> int:
    """Return how many places an output of ``made`` elements has: its channels come first in ``weights``.

    In a matrix that was not turned round they come last.
    """
    channels = next((n for n in (weights[0], weights[-1]) if n and made % n == 0), made)
    return made // channels if channels else 0
