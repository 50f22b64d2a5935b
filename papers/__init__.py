"""The papers' algorithms as the papers define them: no served plan uses them.

Buffers and parts of several CNNs (seed 000), cyclo-static dataflow (seed 001), fused tiles (seed 002).
"""
