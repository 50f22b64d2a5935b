"""Bottlenecks some channels at a time (seed 004): groups, rows, strips, phases."""
