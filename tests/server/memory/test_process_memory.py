"""What memory the system lets the process have, and what it takes beside its budget."""

import mmap
from collections.abc import Mapping
from functools import partial
from pathlib import Path

import pytest

from pipeline.budget.errors import RefusedError
from server.memory.process_memory import (
    MemoryLimit,
    budget_within,
    free_bytes,
    memory_limit,
    process_bytes,
    resolved_budget,
)
from server.settings.settings import Settings, SettingsError, load_settings
from tests.examples import over

V2 = "0::/system.slice/layerstream.service\n"
V1 = "9:name=systemd:/system.slice/l.service\n4:memory:/system.slice/l.service\n0::/\n"
NO_LIMIT_V1 = 9223372036854771712


def group_v2(folder: Path, limit: int | str, current: int, **stat: int) -> None:
    figures = {"anon": 0, "file": 0, "shmem": 0, "slab_reclaimable": 0, **stat}
    fill(folder, {"memory.max": limit, "memory.current": current}, figures)


def group_v1(folder: Path, limit: int, usage: int, cache: int = 0, shmem: int = 0) -> None:
    names = {"memory.limit_in_bytes": limit, "memory.usage_in_bytes": usage}
    fill(folder, names, {"cache": 0, "total_cache": cache, "total_shmem": shmem})


def fill(folder: Path, files: Mapping[str, int | str], stat: Mapping[str, int]) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name, value in files.items():
        (folder / name).write_text(f"{value}\n")
    (folder / "memory.stat").write_text("".join(f"{key} {n}\n" for key, n in stat.items()))


def found(tmp_path: Path, membership: str) -> MemoryLimit | None:
    (tmp_path / "membership").write_text(membership)
    return memory_limit(tmp_path / "cgroup", tmp_path / "membership")


def test_files_can_be_dropped_and_shared_memory_cannot(tmp_path: Path) -> None:
    service = tmp_path / "cgroup/system.slice/layerstream.service"
    group_v2(service, 1000, 900, file=500, shmem=100, slab_reclaimable=50)
    assert found(tmp_path, V2) == MemoryLimit(1000, 900 - (500 - 100) - 50)


def test_version_1(tmp_path: Path) -> None:
    group_v1(tmp_path / "cgroup/memory/system.slice/l.service", 1000, 900, cache=500, shmem=100)
    group_v1(tmp_path / "cgroup/memory", NO_LIMIT_V1, 5000)
    assert found(tmp_path, V1) == MemoryLimit(1000, 500)


def test_of_groups_around_each_other_the_nearest_limit_counts(tmp_path: Path) -> None:
    group_v2(tmp_path / "cgroup/system.slice", 5000, 4950)
    group_v2(tmp_path / "cgroup/system.slice/layerstream.service", 1000, 100)
    assert found(tmp_path, V2) == MemoryLimit(5000, 4950)


def test_in_a_container_the_group_is_mounted_as_the_root(tmp_path: Path) -> None:
    """The path is that of the host, of which only the container's own part is there."""
    group_v1(tmp_path / "cgroup/memory", 2000, 300)
    assert found(tmp_path, "4:memory:/docker/0123\n") == MemoryLimit(2000, 300)


@over("limit, stat", [("max", "file 0\nshmem 0\n"), ("12x", "file 0\nshmem 0\n"), ("5", "")])
def test_no_limit_and_what_cannot_be_understood_are_none(
    tmp_path: Path, limit: str, stat: str
) -> None:
    service = tmp_path / "cgroup/system.slice/layerstream.service"
    group_v2(service, limit, 100)
    (service / "memory.stat").write_text(stat)
    assert found(tmp_path, V2) is None


def test_without_control_groups_there_is_none(tmp_path: Path) -> None:
    assert memory_limit(tmp_path, tmp_path / "missing") is None
    assert found(tmp_path, V2) is None


def test_what_is_free_is_the_least_of_the_limit_and_the_machine(tmp_path: Path) -> None:
    memory = tmp_path / "meminfo"
    where = tmp_path / "cgroup", tmp_path / "membership", memory
    assert free_bytes(*where) == 0  # the system does not say
    memory.write_text("MemTotal: 9000 kB\nMemAvailable: 4000 kB\n")
    assert free_bytes(*where) == 4000 << 10
    group_v2(tmp_path / "cgroup/system.slice/layerstream.service", 1_000_000, 400_000)
    (tmp_path / "membership").write_text(V2)
    assert free_bytes(*where) == 600_000
    memory.write_text("MemAvailable: 100 kB\n")
    assert free_bytes(*where) == 100 << 10


# What a process takes beside its budget, and what is refused before anything is loaded.

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


@over(
    "given, said",
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
        "server.memory.process_memory.machine_bytes", lambda: (group, "the control group allows")
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
