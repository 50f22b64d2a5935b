"""What a model that loads leaves the others: their minimum, and an even share of the rest."""

import gc
import shutil
import weakref
from pathlib import Path

import pytest

from loader.errors import ReadError
from models.errors import PackError
from server.memory.minima import Minima
from tests.server.conftest import SettingsFactory
from tests.server.support import Packs, serving

LOAD = "/v2/repository/models/{}/load"
UNLOAD = "/v2/repository/models/{}/unload"
ALL = ("tiny", "twin", "pair")


def test_a_pack_is_opened_again_when_it_is_another(packs: Packs, tmp_path: Path) -> None:
    asked: list[Path] = []

    def least(folder: Path) -> int:
        asked.append(folder)
        return len(asked)

    minima = Minima(least)
    folder = Path(shutil.copytree(packs.repository / "tiny", tmp_path / "tiny"))
    assert [minima.of("tiny", folder), minima.of("tiny", folder)] == [1, 1]
    shutil.copytree(folder / "1", folder / "2")
    assert [minima.of("tiny", folder), minima.of("tiny", folder)] == [2, 2]
    manifest = folder / "2" / "manifest.json"
    shutil.copy(manifest, folder / "other")
    (folder / "other").replace(manifest)
    assert minima.of("tiny", folder) == 3
    shutil.rmtree(folder)
    assert minima.of("tiny", folder) is None
    assert asked == [folder] * 3


class Needed:
    """What a pack needs."""


def test_versions_that_were_are_not_remembered(packs: Packs, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(packs.repository / "tiny", tmp_path / "tiny"))
    known: weakref.WeakSet[Needed] = weakref.WeakSet()

    def least(_folder: Path) -> Needed:
        known.add(needed := Needed())
        return needed

    minima = Minima(least)
    for number in range(2, 6):
        shutil.copytree(folder / "1", folder / str(number))
        minima.of("tiny", folder)
    gc.collect()
    assert len(known) == 1


@pytest.mark.parametrize("fault", [ReadError("weights.bin"), PackError("x"), PermissionError()])
def test_a_pack_that_cannot_be_read_has_no_claim(packs: Packs, fault: Exception) -> None:
    def least(folder: Path) -> int:
        raise fault

    assert Minima(least).of("tiny", packs.repository / "tiny") is None


@pytest.mark.parametrize(
    "named", [ALL, pytest.param((), marks=pytest.mark.slow)], ids=["named", "found"]
)
async def test_what_was_loaded_together_loads_again_one_by_one(
    settings: SettingsFactory, packs: Packs, named: tuple[str, ...]
) -> None:
    budget = sum(packs.smallest(name) for name in ALL) + (256 << 10)
    async with serving(settings(models_budget=budget, models=named)) as service:
        for order in (ALL[:2], ALL[1::-1], ALL[::-1]):
            for name in order:
                await service.client.post(UNLOAD.format(name))
            for name in order:
                response = await service.client.post(LOAD.format(name))
                assert response.status_code == 200, response.text
            assert service.context.budget.used_bytes <= service.context.budget.total_bytes


async def test_a_model_that_is_not_served_has_no_claim(
    settings: SettingsFactory, packs: Packs
) -> None:
    """What "twin" and "pair" need is not kept where the settings do not name them."""
    async with serving(
        settings(models_budget=packs.weights("tiny") * 3, models=("tiny",))
    ) as service:
        alone = service.context.budget.held()
        await service.client.post(UNLOAD.format("tiny"))
        await service.client.post(LOAD.format("tiny"))
        assert service.context.budget.held() == alone
