"""What a process takes beside its budget, and what is refused before anything is loaded."""

import mmap
from functools import partial

import pytest

from server.errors import RefusedError
from server.memory.whole_process import budget_within, process_bytes, resolved_budget
from server.settings.settings import Settings, SettingsError, load_settings

MIB = 1 << 20


def settings(**values: object) -> Settings:
    return load_settings({"repository": "/packs", **values})


def test_process_and_budget_are_the_memory() -> None:
    for models in (1, 5):
        budget = resolved_budget(settings(memory="256MB"), partial(int, models))
        assert budget + process_bytes(models) == 256_000_000
    with_grpc = resolved_budget(settings(memory="256MB", grpc_port=0), lambda: 1)
    assert with_grpc == 256_000_000 - process_bytes(1, grpc=True) < budget_within(256_000_000, 1)


def test_a_budget_is_as_it_was_given() -> None:
    assert resolved_budget(settings(budget="3MiB"), lambda: 7) == 3 * MIB


def test_models_that_may_come_have_room_in_an_empty_repository() -> None:
    assert resolved_budget(settings(memory="256MiB"), lambda: 0) == budget_within(256 * MIB, 1)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"memory": "90MiB"}, r"the process itself takes up to .* leave nothing"),
        ({"memory": "900TiB"}, r"^memory: .* more than (this machine has|the control group)"),
        ({"budget": "900TiB"}, r"^budget: .* more than (this machine has|the control group)"),
        ({"memory": "1GiB", "device": "cuda"}, "give --budget"),
    ],
)
def test_what_cannot_be_is_refused(given: dict[str, object], said: str) -> None:
    with pytest.raises(RefusedError, match=said):
        resolved_budget(settings(**given), lambda: 1)


def test_a_group_of_just_so_much_is_counted_in_pages(monkeypatch: pytest.MonkeyPatch) -> None:
    group = 230_000_000 // mmap.PAGESIZE * mmap.PAGESIZE
    monkeypatch.setattr(
        "server.memory.whole_process.machine_bytes", lambda: (group, "the control group allows")
    )
    assert resolved_budget(settings(memory="230MB"), lambda: 1) == budget_within(230_000_000, 1)
    with pytest.raises(RefusedError, match="the control group"):
        resolved_budget(settings(memory=str(group + mmap.PAGESIZE)), lambda: 1)


def test_one_of_the_two_is_given() -> None:
    with pytest.raises(SettingsError, match=r"^--budget: memory is given, too"):
        settings(memory="1GiB", budget="1GiB")
    with pytest.raises(SettingsError, match=r"^budget: not given.*--memory"):
        settings()
    with pytest.raises(SettingsError, match=r"^--memory: "):
        settings(memory="much")
