"""Lowering: a piece, a small ONNX model, becomes launches of kernels."""

from pipeline.devices.cuda.lowering.errors import NotCoveredError
from pipeline.devices.cuda.lowering.geometry import geometry_key
from pipeline.devices.cuda.lowering.lower import convolutions, describe, geometries, lower
from pipeline.devices.cuda.lowering.settings import Settings

__all__ = [
    "NotCoveredError",
    "Settings",
    "convolutions",
    "describe",
    "geometries",
    "geometry_key",
    "lower",
]
