"""``make demo``: what a trained detector finds; a network answers in a third of the memory of its weights.

``detect`` is the first. ``play`` runs the second beside servers that cannot, ``story`` says in words what
came of it, ``picture`` draws memory over time.
"""
