"""Cyclo-static dataflow (seed 001): CNNs as actors with phases, their smallest buffers, their schedules."""
