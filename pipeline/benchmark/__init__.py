"""Architectures of one pack beside what users would run instead, interleaved in one run.

``configuration`` says what is measured, ``contenders`` how each is run once, ``turns`` in what order,
``rows`` what is said of it; ``run`` puts them together.
"""

from pipeline.benchmark.configuration import BenchConfiguration
from pipeline.benchmark.run import BenchOptions, bench_pipeline
from pipeline.measuring.sample_inputs import random_inputs

__all__ = ["BenchConfiguration", "BenchOptions", "bench_pipeline", "random_inputs"]
