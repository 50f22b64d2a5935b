"""Applications of several CNNs: their buffers, and what one device needs for all of them (seed 000)."""
