"""What the papers say as they say it, beside what plans are made of: nothing that is served uses it.

Buffers and parts of several CNNs (seed 000), cyclo-static dataflow (seed 001), fused tiles (seed 002).
"""
