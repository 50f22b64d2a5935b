"""Seeded weights for skeletons, calibrated so that activations say something through 300 layers.

Random weights alone do not: their activations grow, die, or become equal for all images. Here every
batch norm gets the statistics that its input really has on a few photographs, and every other layer of
weights is scaled to outputs of deviation 1 (data-dependent initialisation, as in Mishkin and Matas,
"All you need is a good init", 2015). Such a network has learnt nothing, but it computes with numbers
of ordinary size, and what it answers depends on the image.
"""
