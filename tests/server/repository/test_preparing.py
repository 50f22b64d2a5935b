"""Opening packs to see what they need, and to load them: once, unless their files change in between."""

import os
from pathlib import Path
from shutil import copytree

import pytest

from models.packs.pack import Pack, open_pack
from pipeline.devices.cpu import CpuDevice
from server.memory.budget import Budget
from server.repository import preparing
from server.repository.on_disk import slots
from server.repository.preparing import Prepared, Preparer
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
        self.preparer = Preparer(settings(repository=repository), self.budget, CpuDevice(1))

        def counted(*arguments: object) -> Pack:
            self.count += 1
            return open_pack(*arguments)  # type: ignore[arg-type]

        patch.setattr(preparing, "open_pack", counted)

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
