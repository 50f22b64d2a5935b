"""A first plan is there at once, and fits wherever the smallest one does."""

from pathlib import Path

import pytest

from models.packs.manifest import Manifest
from models.packs.pack import open_pack
from pipeline.fitting import within
from pipeline.fitting.fit import by_thumb, fit
from pipeline.fitting.wanted import LEAST, Wanted
from pipeline.schedule.architectures import ARCHITECTURES
from tests.pipeline.made_profiles import profile
from tests.pipeline.small import small_pack


@pytest.fixture(scope="module")
def network(tmp_path_factory: pytest.TempPathFactory) -> Manifest:
    folder: Path = tmp_path_factory.mktemp("small")
    return open_pack(small_pack(folder)).manifest


def never(*_: object) -> None:
    raise AssertionError("a search")


@pytest.mark.parametrize("measured", [False, True])
@pytest.mark.parametrize("name", ["auto", "2s", "pre", "2s-md"])
def test_it_fits_and_nothing_is_searched_for(
    network: Manifest, monkeypatch: pytest.MonkeyPatch, name: str, measured: bool
) -> None:
    architecture = ARCHITECTURES[name]
    known = profile(network) if measured or name == "2s-md" else None
    least = fit(network, architecture, LEAST, known).plan
    monkeypatch.setattr(within, "row_variants", never)
    sizes = [least.total_bytes + part * network.weight_bytes // 8 for part in range(12)]
    taken = []
    for total in sizes:
        found = by_thumb(network, architecture, Wanted(total_bytes=total), least, known)
        assert found.by_thumb
        assert least.total_bytes <= found.plan.total_bytes <= total
        assert (found.prediction is not None) == (known is not None)
        taken.append(found.plan.read_bytes)
    assert taken == sorted(taken, reverse=True)  # what is left keeps weights
