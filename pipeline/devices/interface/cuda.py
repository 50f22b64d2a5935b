"""The table of the CUDA kernels: enumerations and structures that launches have as numbers.

``python -m tools.c_headers`` writes cuda/kernels/headers/interface.cuh from it.
"""

import ctypes
from collections.abc import Sequence
from typing import Literal

from models.network.activations import Arithmetic, Kind
from pipeline.devices.interface.rows import (
    Constants,
    CTypes,
    Entry,
    Enumeration,
    Members,
    Structure,
)

#: Axes of a layout that cannot be joined.
MAX_RANK = 6
#: The numbers of functions of one element in kernels; none has 0. Up to clip they are lines between bounds.
ACTIVATIONS: tuple[Kind | Literal["none"], ...] = (
    *("none", "relu", "leaky_relu", "clip", "sigmoid", "tanh", "mish", "silu", "hard_sigmoid"),
    *("hard_swish", "elu", "softplus", "exp", "gelu", "gelu_tanh", "absolute", "ceil", "erf"),
    *("floor", "log", "negative", "reciprocal", "round", "sign", "softsign", "sqrt", "celu"),
    *("selu", "thresholded_relu"),
)
#: And of two.
ARITHMETIC: tuple[Arithmetic, ...] = (
    *("add", "subtract", "multiply", "divide", "power", "smaller", "larger", "scale_negative"),
    "modulo",
)
#: What is done to each of the numbers that a reduction joins, and to what they come to.
BEFORE = ("nothing", "square", "magnitude")
AFTER = ("nothing", "mean", "root")

CUDA: tuple[Entry, ...] = (
    Enumeration(
        "Functions of each element, as kernels fuse them; parameters as in models/network/activations.py.",
        "Activation",
        ACTIVATIONS,
        "",
    ),
    Enumeration("Functions of two, as there.", "Arithmetic", ARITHMETIC, ""),
    Enumeration(
        "What a reduction does to each number before it joins them, and to what they come to.",
        "Before",
        BEFORE,
        "",
    ),
    Enumeration("", "After", AFTER, ""),
    Constants("Axes of a layout.", {"MAX_RANK": MAX_RANK}),
    Structure(
        "Layouts. Axes are innermost first; strides count elements, 0 along axes that an input does not "
        "have.",
        "BroadcastLayout",
        (Members("int", "rank", ""), Members("int[MAX_RANK]", "sizes a b", "")),
    ),
    Structure(
        "Strides may be negative (the pointer is then at the last element) or, on the side that is read, "
        "0.",
        "CopyLayout",
        (Members("int", "rank", ""), Members("int[MAX_RANK]", "sizes source target", "")),
    ),
    Structure(
        "The result is contiguous.",
        "ReduceLayout",
        (
            Members("int", "kept_rank reduced_rank", ""),
            Members("int[MAX_RANK]", "kept_sizes kept_strides reduced_sizes reduced_strides", ""),
        ),
    ),
    Structure(
        "A pool with a window on planes.",
        "Pool",
        (
            Members("int", "height width out_height out_width kernel_height kernel_width", ""),
            Members("int", "stride_height stride_width pad_top pad_left pad_bottom pad_right", ""),
            Members("int", "dilation_height dilation_width", ""),
        ),
    ),
    Structure(
        "A convolution. `channels` and `filters`: of one group. Numbers k go over channels, rows and "
        "columns of the kernel, as weights lie.",
        "Convolution",
        (
            Members("int", "channels height width filters kernel_height kernel_width", ""),
            Members("int", "stride_height stride_width pad_top pad_left", ""),
            Members("int", "dilation_height dilation_width out_height out_width groups", ""),
            Members(
                "int", "split_k split_stride", "numbers k of a split; sums from one to the next"
            ),
            Members("int", "area_reciprocal width_reciprocal", "of the kernel, for `quotient`"),
        ),
    ),
)
CTYPES = CTypes(CUDA)


def packed(structure: str, **members: int | Sequence[int]) -> tuple[int, ...]:
    """Return ``structure`` with ``members``, which are all of its own, as the int32 that it is made of.

    Arrays may be shorter than C has them: zeros follow.
    """
    kind = CTYPES.structures[structure]
    assert members.keys() == {name for name, *_ in kind._fields_}, structure
    values = kind(**{name: n if isinstance(n, int) else tuple(n) for name, n in members.items()})
    return tuple((ctypes.c_int32 * (ctypes.sizeof(kind) // 4)).from_buffer(values))
