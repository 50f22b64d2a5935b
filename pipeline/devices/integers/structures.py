"""The structures of elementwise/kernels/integers/integers.h."""

import ctypes

from models.network.operators.quantised import MOST_JOINED, MOST_LAYERS


class ScaledStruct(ctypes.Structure):
    """`struct scaled`: where a scale and a zero point lie."""

    _fields_ = (
        ("scale", ctypes.c_void_p),
        ("zero", ctypes.c_void_p),
        ("flip", ctypes.c_int32),
        ("unused", ctypes.c_int32),
    )


class LayerStruct(ctypes.Structure):
    """`struct layer`."""

    _fields_ = (
        ("weights", ctypes.c_void_p),
        ("bias", ctypes.c_void_p),
        ("given", ScaledStruct),
        ("weight", ScaledStruct),
        ("made", ScaledStruct),
        ("scales_apart", ctypes.c_int32),
        ("zeros_apart", ctypes.c_int32),
        ("by_inputs", ctypes.c_int32),
        ("depthwise", ctypes.c_int32),
        ("channels", ctypes.c_int32),
        ("filters", ctypes.c_int32),
        ("kernel_y", ctypes.c_int32),
        ("kernel_x", ctypes.c_int32),
        ("stride_y", ctypes.c_int32),
        ("stride_x", ctypes.c_int32),
        ("step_y", ctypes.c_int32),
        ("step_x", ctypes.c_int32),
        ("above", ctypes.c_int32),
        ("left", ctypes.c_int32),
        ("height", ctypes.c_int32),
        ("width", ctypes.c_int32),
        ("made_height", ctypes.c_int32),
        ("made_width", ctypes.c_int32),
    )


class AdditionStruct(ctypes.Structure):
    """`struct addition`."""

    _fields_ = (
        ("first", ScaledStruct),
        ("second", ScaledStruct),
        ("made", ScaledStruct),
        ("other", ctypes.c_void_p),
        ("over", ctypes.c_int32),
        ("unused", ctypes.c_int32),
    )


class PictureStruct(ctypes.Structure):
    """`struct picture`."""

    _fields_ = (
        ("planes", ctypes.c_void_p),
        ("plane", ctypes.c_size_t),
        ("line", ctypes.c_size_t),
        ("first_line", ctypes.c_int32),
        ("first_column", ctypes.c_int32),
        ("made", ScaledStruct),
    )


class JoinedStruct(ctypes.Structure):
    """`struct joined`."""

    _fields_ = (
        ("count", ctypes.c_int32),
        ("channels", ctypes.c_int32 * MOST_JOINED),
        ("unused", ctypes.c_int32),
        ("parts", ctypes.c_void_p * MOST_JOINED),
        ("given", ScaledStruct * MOST_JOINED),
        ("made", ScaledStruct),
    )


class PoolStruct(ctypes.Structure):
    """`struct pool`."""

    _fields_ = (
        ("kernel_y", ctypes.c_int32),
        ("kernel_x", ctypes.c_int32),
        ("stride_y", ctypes.c_int32),
        ("stride_x", ctypes.c_int32),
        ("above", ctypes.c_int32),
        ("left", ctypes.c_int32),
        ("made_height", ctypes.c_int32),
        ("made_width", ctypes.c_int32),
    )


class TaskStruct(ctypes.Structure):
    """`struct task`."""

    _fields_ = (
        ("n_layers", ctypes.c_int32),
        ("depthwise", ctypes.c_int32),
        ("group", ctypes.c_int32),
        ("rows", ctypes.c_int32),
        ("first_row", ctypes.c_int32),
        ("end_row", ctypes.c_int32),
        ("n_parts", ctypes.c_int32),
        ("n_places", ctypes.c_int32),
        ("n_bytes", ctypes.c_size_t),
        ("cost", ctypes.c_double),
        ("failed", ctypes.c_int32),
        ("state", ctypes.c_int32),
        ("next", ctypes.c_int32),
        ("ended", ctypes.c_int32),
        ("memory", ctypes.c_void_p),
        ("given", ctypes.c_void_p),
        ("made", ctypes.c_void_p),
        ("table", ctypes.c_void_p),
        ("picture", PictureStruct),
        ("joined", JoinedStruct),
        ("addition", AdditionStruct),
        ("pool", PoolStruct),
        ("layers", LayerStruct * MOST_LAYERS),
    )


class AverageStruct(ctypes.Structure):
    """`struct average`."""

    _fields_ = (
        ("given", ctypes.c_void_p),
        ("made", ctypes.c_void_p),
        ("source", ScaledStruct),
        ("target", ScaledStruct),
        ("channels", ctypes.c_int32),
        ("pixels", ctypes.c_int32),
    )
