"""``make demo``: boxes around what a trained detector finds; and a network answers in a third of the memory that
its weights take, beside who cannot.

``detect`` is the first. ``play`` runs the second, ``story`` says in words what came of it, ``terminal`` and ``picture`` draw memory over
time.
"""
