"""Plots of measurements, as the figures of seed 003 show them; needs matplotlib (the extra ``bench``)."""
