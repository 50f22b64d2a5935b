"""Architectures of one pack beside what users would run instead, interleaved in one run.

``configuration`` says what is measured, ``contenders`` how each is run once and in what order; ``run`` puts
them together and says what came of it.
"""
