"""``make demo``: a network answers in a third of the memory that its weights take, beside who cannot.

``play`` runs it, ``story`` says in words what came of it, ``terminal`` and ``picture`` draw memory over
time.
"""
