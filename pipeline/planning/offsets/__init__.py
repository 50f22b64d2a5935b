"""Offsets of buffers in one arena, as a problem of its own (docs/explanation/offsets.md)."""

from pipeline.planning.offsets.problem import LiveBuffer, OffsetsError, Placement, Problem
from pipeline.planning.offsets.solve import place

__all__ = ["LiveBuffer", "OffsetsError", "Placement", "Problem", "place"]
