"""Weights that are whole numbers times a scale of their channel, found in the floats that kernels read.

So they are in networks whose weights were quantised elsewhere. How the compiler turned, blocked and cut
them since, or folded batch norms into them, matters nothing here: a channel of such numbers has a scale,
its largest magnitude over one of the integers from 1 to 128.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

# What quantisers take as the largest: of 8 bits, 4 bits, then any other.
_USUAL = (127, 128, 7, 8)
_LARGEST = (*_USUAL, *(each for each in range(126, 0, -1) if each not in _USUAL))
# Numbers of a channel that are tried first: few others look whole.
_TRIED = 32
_LOOKS_WHOLE = 1e-3
# A scale times a factor of a batch norm was rounded once more: each number is a unit or two off in its last
# place.
_ROUNDED = 2.0**-22
Floats = NDArray[np.float32]


@dataclass(frozen=True)
class WholeNumbers:
    """``scales``: float32 [channels]. ``integers``: int8 [channels, numbers]."""

    scales: Floats
    integers: NDArray[np.int8]


def whole_numbers(rows: Floats, exact: bool) -> WholeNumbers | None:
    """Return ``rows``, [channels, numbers], as integers times scales; None where they are not.

    ``exact``: to the bit; else within 2 ** -22 of each number. A channel of zeros has scale 0.
    """
    largest = np.abs(rows).max(axis=1)
    scales = np.zeros(len(rows), np.float32)
    left = np.flatnonzero(largest > 0)
    if not np.isfinite(largest).all():
        return None
    for most in _LARGEST:
        if not len(left):
            break
        guess = largest[left] / np.float32(most)
        likely = _look_whole(rows[left], guess)
        if likely.any():
            scales[left[likely]] = _fitting(rows[left[likely]], guess[likely], exact)
            left = left[scales[left] == 0]
    if len(left):
        return None
    return WholeNumbers(scales, _integers(rows, scales).astype(np.int8))


def _look_whole(rows: Floats, scales: Floats) -> NDArray[np.bool_]:
    step = -(-rows.shape[1] // _TRIED)
    some = rows[:, ::step] / scales[:, None]
    looks: NDArray[np.bool_] = (np.abs(some - np.rint(some)) < _LOOKS_WHOLE).all(axis=1)
    return looks


def _integers(rows: Floats, scales: Floats) -> Floats:
    whole: Floats = np.rint(
        np.divide(rows, scales[:, None], out=np.zeros_like(rows), where=scales[:, None] > 0)
    )
    return whole


def _fitting(rows: Floats, guess: Floats, exact: bool) -> Floats:
    """Return the scale beside ``guess`` that makes each row of integers; 0 where none does.

    A quotient is rounded: the scale itself is one of its neighbours.
    """
    integers = _integers(rows, guess)
    down, up = (np.nextafter(guess, np.float32(limit)) for limit in (0, np.inf))
    # What 128 stands for must be negative.
    held = integers.max(axis=1, initial=0) <= np.iinfo(np.int8).max
    best, least = np.zeros_like(guess), np.full(guess.shape, 0.0 if exact else _ROUNDED)
    for scale in (guess, down, up):
        error = np.abs(integers * scale[:, None] - rows)
        relative = np.divide(error, np.abs(rows), out=error, where=rows != 0).max(axis=1)
        better = held & (relative <= least) & ((best == 0) | (relative < least))
        best, least = np.where(better, scale, best), np.where(better, relative, least)
    return best
