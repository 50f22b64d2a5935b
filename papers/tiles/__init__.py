"""Fused groups of layers on tiles (seed 002): how they are cut and tiled, what they take and compute."""
