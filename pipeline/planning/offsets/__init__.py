"""Offsets of buffers in one arena, as a problem of its own (docs/explanation/offsets.md)."""
