"""Planners: pure functions from what a pack says and what the user allows to a frozen plan."""
