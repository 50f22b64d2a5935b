"""A service is killed while models come and go; ``python -m benchmarks.repository.killed`` plays longer."""

from collections import Counter
from pathlib import Path

import pytest

from benchmarks.repository.killed import make_repository, round_of


@pytest.mark.slow
def test_a_killed_service_leaves_whole_models(tmp_path: Path) -> None:
    repository = make_repository(tmp_path)
    counts = sum((round_of(seed, repository) for seed in range(4)), Counter[str]())
    assert len(counts) > 4  # or nothing was cut off, or nothing done
