"""What a model that loads leaves the others: their minimum, and an even share of the rest."""

import errno
import shutil
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from loader.errors import ReadError
from models.errors import PackError
from models.packs.pack import open_pack
from pipeline.budget.budget import Budget
from pipeline.budget.holdings import Minimum
from pipeline.budget.request_needs import Need
from pipeline.budget.search import Search
from pipeline.budget.sharing import Activations, possible, shared_space, sharer
from pipeline.devices import find
from pipeline.devices.base import Device
from pipeline.devices.cpu import CpuDevice
from pipeline.devices.device_memory import Space
from pipeline.program.prepare import prepare
from pipeline.schedule.architectures import ARCHITECTURES
from server.repository import catalog
from server.repository.catalog import Catalog
from server.repository.on_disk import Slot, slots
from tests.examples import over
from tests.server.conftest import SettingsFactory
from tests.server.support import Cli, Packs, serving

LOAD = "/v2/repository/models/{}/load"
UNLOAD = "/v2/repository/models/{}/unload"
ALL = ("tiny", "twin", "pair")


def test_a_pack_is_opened_again_when_it_is_another(
    settings: SettingsFactory, packs: Packs, tmp_path: Path
) -> None:
    asked: list[Minimum] = []

    def least(_: Slot) -> Minimum:
        asked.append(Minimum({"resident": len(asked)}, Need(0, 0)))
        return asked[-1]

    known = Catalog(settings(), Budget(1 << 30), least)
    folder = Path(shutil.copytree(packs.repository / "tiny", tmp_path / "tiny"))

    def found() -> list[int]:
        minima = [known.minimum(slot) for _ in range(2) for slot in slots(tmp_path, "tiny")]
        return [asked.index(minimum) for minimum in minima if minimum is not None]

    assert found() == [0, 0]
    shutil.copytree(folder / "1", folder / "2")
    assert found() == [1, 1]
    manifest = folder / "2" / "manifest.json"
    shutil.copy(manifest, folder / "other")
    (folder / "other").replace(manifest)
    assert found() == [2, 2]
    assert [known for _, known in known._minima.values()] == asked[-1:]  # versions that were go


@pytest.mark.parametrize("fault", [ReadError("weights.bin"), PackError("x"), PermissionError()])
def test_a_pack_that_cannot_be_read_has_no_claim(
    settings: SettingsFactory, packs: Packs, fault: Exception
) -> None:
    def least(_: Slot) -> Minimum:
        raise fault

    (slot,) = slots(packs.repository, "tiny")
    assert Catalog(settings(), Budget(1 << 30), least).minimum(slot) is None


def test_what_takes_long_is_tried_at_once_but_once(packs: Packs) -> None:
    class Slow(Search):
        tries = 0

        def briefly(self, function: Callable[..., Any], *arguments: Any) -> None:
            self.tries += 1

    device, search, room = CpuDevice(1), Slow(), 8 << 20
    program = prepare(open_pack(packs.repository / "tiny", device.target), device)
    made = sharer("tiny", program, ARCHITECTURES["auto"], search=search)
    assert made.at_once is not None
    assert made.within is not None
    for n_bytes in (room, room, room + 1, room):
        assert made.at_once(n_bytes).heuristic
    assert search.tries == 2
    made.within(room)
    assert not made.at_once(room).heuristic
    assert search.tries == 2


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
            assert service.inside.budget.used_bytes <= service.inside.budget.total_bytes


async def test_a_start_scans_each_model_twice_however_many_there_are(
    settings: SettingsFactory, packs: Packs, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Once before all of them, and once before it is loaded."""
    scanned = Counter[str]()

    def counted(root: Path, model: str, *config: Any) -> list[Slot]:
        scanned[model] += 1
        return slots(root, model, *config)

    monkeypatch.setattr(catalog, "slots", counted)
    async with serving(settings(models_budget=64 << 20, models=ALL)):
        assert scanned == dict.fromkeys(ALL, 2)


async def test_a_model_that_is_not_served_has_no_claim(
    settings: SettingsFactory, packs: Packs
) -> None:
    """What "twin" and "pair" need is not kept where the settings do not name them."""
    async with serving(
        settings(models_budget=packs.weights("tiny") * 3, models=("tiny",))
    ) as service:
        alone = service.inside.budget.held()
        await service.client.post(UNLOAD.format("tiny"))
        await service.client.post(LOAD.format("tiny"))
        assert service.inside.budget.held() == alone


# Whether activations can be shared: as a device says, for a service and for commands alike.

EACH: tuple[Activations, ...] = ("auto", "own", "shared")


class Apart(CpuDevice):
    """A device whose memory has no pages that come as they are touched, as that of a GPU."""

    def reserve(self, capacity_bytes: int) -> Space | None:
        return None


class Refused(CpuDevice):
    """A system that gives no addresses."""

    def reserve(self, capacity_bytes: int) -> Space | None:
        raise OSError(errno.ENOMEM, "no addresses")


@over(
    "device, expected, reasons",
    [
        (CpuDevice(1), EACH, ("", "", "")),
        (Apart(1), ("own",) * 3, ("", "", "this device cannot")),
        (Refused(1), ("own",) * 3, ("no addresses", "", "no addresses")),
    ],
)
def test_what_is_possible(
    device: Device, expected: tuple[Activations, ...], reasons: tuple[str, ...]
) -> None:
    for asked, mode, words in zip(EACH, expected, reasons, strict=True):
        found, why = possible(device, asked, 1 << 20)
        assert found == possible(device, asked)[0] == mode
        assert words in why
        assert bool(words) == bool(why)
        space, said = shared_space(device, 1 << 20, asked)
        assert said == why
        assert (space is None) == (mode == "own")
        if space is not None:
            space.close()


def test_commands_say_what_a_service_will_do(
    cli: Cli, packs: Packs, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(find, "open_device", lambda *_: Apart(1))
    listed = cli("list", packs.repository, "--budget", "64MiB", "--json").document
    assert listed["activations"] == "own"
    both: list[Path] = [packs.repository / name for name in ("tiny", "pair")]
    for asked in ("auto", "shared"):
        shown = cli("plan", *both, "--budget", "64MiB", "--activations", asked, "--json")
        assert not shown.document["in_turns"]
        assert ("this device cannot share" in shown.err) == (asked == "shared")
