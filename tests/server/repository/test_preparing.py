"""Opening packs to see what they need, and to load them: once, unless their files change in between."""

import os
from pathlib import Path
from shutil import copytree
from typing import Any, cast

import pytest

from loader.pool.pool import ReadPool
from models.packs.pack import Pack, open_pack
from pipeline.budget.budget import Budget
from pipeline.devices.cpu import CpuDevice
from server.repository import environment
from server.repository.environment import RepositoryEnvironment
from server.repository.model_config import read_model_config
from server.repository.on_disk import Slot, slots
from server.repository.preparing import Prepared, Preparer, batching_of
from server.scheduling.sweeps import ALONE, Batching
from server.settings.per_model import MOST_LANES
from server.settings.settings import load_settings
from tests.server.conftest import SettingsFactory
from tests.server.support import Packs


class Opened:
    """A preparer in a repository of its own; counts how often packs are opened."""

    def __init__(
        self,
        settings: SettingsFactory,
        repository: Path,
        patch: pytest.MonkeyPatch,
        budget_bytes: int,
    ) -> None:
        self.repository = repository
        self.count = 0
        self.budget = Budget(budget_bytes)
        of = settings(repository=repository)
        pool = cast(ReadPool, None)  # nothing is read
        self.preparer = Preparer(of, self.budget, RepositoryEnvironment(of, CpuDevice(1), pool))

        def counted(*arguments: object) -> Pack:
            self.count += 1
            return open_pack(*arguments)  # type: ignore[arg-type]

        patch.setattr(environment, "open_pack", counted)

    def least(self, name: str) -> int:
        (slot,) = slots(self.repository, name)
        return sum(self.preparer.least(slot).memory.values())

    def prepare(self, name: str) -> Prepared:
        (slot,) = slots(self.repository, name)
        self.budget.set_aside(8 << 20, ())
        return self.preparer.prepare(slot)


@pytest.fixture
def repository(packs: Packs, tmp_path: Path) -> Path:
    return Path(copytree(packs.repository, tmp_path / "packs"))


def test_what_was_opened_to_see_what_it_needs_is_loaded(
    settings: SettingsFactory, repository: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened = Opened(settings, repository, monkeypatch, 64 << 20)
    least = opened.least("tiny")
    found = opened.prepare("tiny")
    assert opened.count == 1
    assert sum(found.sharer.least.values()) == least
    opened.prepare("tiny")  # nothing is kept of what is loaded
    assert opened.count == 2


@pytest.mark.parametrize("file", ["manifest.json", "pieces.bin", "weights.bin", "profile.json"])
def test_files_that_changed_since_are_opened_again(
    settings: SettingsFactory, repository: Path, monkeypatch: pytest.MonkeyPatch, file: str
) -> None:
    opened = Opened(settings, repository, monkeypatch, 64 << 20)
    opened.least("tiny")
    changed = repository / "tiny" / "1" / file
    changed.touch()
    os.utime(changed, ns=(0, 0))
    opened.prepare("tiny")
    assert opened.count == 2


def test_no_more_is_kept_than_the_budget_may_hold(
    settings: SettingsFactory, repository: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = ("tiny", "pair", "twin")
    sizes = [Opened(settings, repository, monkeypatch, 64 << 20).least(name) for name in names]
    opened = Opened(settings, repository, monkeypatch, sum(sizes[:2]))
    assert [opened.least(name) for name in names] == sizes
    opened.budget.total_bytes = 64 << 20  # to have requests answered
    for name in names:
        opened.prepare(name)
    assert opened.count == 3 + 1


# How requests share sweeps: the settings first, then the model's config.pbtxt.

GIVEN: dict[str, Any] = {"repository": Path("models"), "budget": 64 << 20}
EIGHT = """
    max_batch_size: 8
    dynamic_batching { preferred_batch_size: [2, 4] max_queue_delay_microseconds: 5000 }
"""


@pytest.mark.parametrize(
    ("given", "config", "expected"),
    [
        ({}, "", ALONE),
        ({"lanes": "4"}, "", Batching(4, (4,), 0.0)),
        ({"lanes": "m=4,2"}, "", Batching(4, (4,), 0.0)),
        ({"lanes": "other=4"}, "", ALONE),
        (
            {"lanes": 8, "preferred_lanes": "m=2", "lane_delay": "0.005"},
            "",
            Batching(8, (2,), 0.005),
        ),
        ({}, EIGHT, Batching(8, (2, 4), 0.005)),
        ({}, "max_batch_size: 8 dynamic_batching { }", Batching(8, (8,), 0.0)),
        ({}, "max_batch_size: 1000 dynamic_batching { }", Batching(MOST_LANES, (MOST_LANES,), 0.0)),
        ({}, "max_batch_size: 8", ALONE),
        ({}, "dynamic_batching { }", ALONE),
        ({"lanes": "1"}, EIGHT, Batching(1, (1,), 0.0)),
        ({"workers": "m=2"}, EIGHT, ALONE),
    ],
)
def test_how_requests_share_sweeps(
    tmp_path: Path, given: dict[str, Any], config: str, expected: Batching
) -> None:
    folder = tmp_path / "m"
    folder.mkdir()
    (folder / "config.pbtxt").write_text(config)
    slot = Slot("m", "m", folder / "1", read_model_config(folder), ())
    assert batching_of(load_settings(GIVEN | given), slot) == expected
