"""What the files of a memory cgroup say, in version 1 and in version 2, in trees made of plain files."""

import os
import subprocess
from pathlib import Path

import pytest

from benchmarks.machine.room import OpenRoom
from pipeline.peers.cgroup import Controller, MemoryGroup, Usage, find_controller

MIB = 1 << 20
V1_STAT = f"cache {50 * MIB}\nrss {30 * MIB}\nrss_huge 0\nshmem {4 * MIB}\nmapped_file {9 * MIB}\n"
V2_STAT = (
    f"anon {30 * MIB}\nfile {50 * MIB}\nkernel {MIB}\nshmem {4 * MIB}\nfile_mapped {9 * MIB}\n"
)


def controller(root: Path, version: int) -> Controller:
    """Return the controller of a made up tree that has only ``version``."""
    v1, v2 = root / "v1", root / "v2"
    v1.mkdir()
    v2.mkdir()
    if version == 1:
        (v1 / "memory.limit_in_bytes").write_text("9223372036854771712")
    else:
        (v2 / "cgroup.subtree_control").write_text("cpu io memory pids\n")
    return find_controller(v1, v2)


@pytest.mark.parametrize(
    ("version", "stat", "texts"),
    [
        (
            1,
            V1_STAT,
            {
                "memory.usage_in_bytes": f"{90 * MIB}\n",
                "memory.max_usage_in_bytes": f"{95 * MIB}\n",
                "memory.oom_control": "oom_kill_disable 0\nunder_oom 0\noom_kill 2\n",
            },
        ),
        (
            2,
            V2_STAT,
            {
                "memory.current": f"{90 * MIB}\n",
                "memory.peak": f"{95 * MIB}\n",
                "memory.events": "low 0\nhigh 0\nmax 31\noom 2\noom_kill 2\noom_group_kill 0\n",
            },
        ),
    ],
)
def test_both_versions_tell_the_same(
    tmp_path: Path, version: int, stat: str, texts: dict[str, str]
) -> None:
    group = MemoryGroup("test", 100 * MIB, controller(tmp_path, version))
    for name, text in {**texts, "memory.stat": stat}.items():
        (group.path / name).write_text(text)
    assert group.usage() == Usage(90 * MIB, anonymous=34 * MIB, file=46 * MIB)
    assert group.peak_bytes == 95 * MIB
    assert group.oom_kills == 2


@pytest.mark.parametrize(
    ("version", "limit", "swap"),
    [
        (1, "memory.limit_in_bytes", ("memory.memsw.limit_in_bytes", str(100 * MIB))),
        (2, "memory.max", ("memory.swap.max", "0")),
    ],
)
def test_a_limit_leaves_no_swap(
    tmp_path: Path, version: int, limit: str, swap: tuple[str, str]
) -> None:
    group = MemoryGroup("test", 100 * MIB, controller(tmp_path, version))
    assert (group.path / limit).read_text() == str(100 * MIB)
    assert (group.path / swap[0]).read_text() == swap[1]


def test_what_the_kernel_does_not_say_is_zero(tmp_path: Path) -> None:
    group = MemoryGroup("test", controller=controller(tmp_path, 2))
    assert group.usage() == Usage(0, 0, 0)
    assert (group.peak_bytes, group.oom_kills) == (0, 0)


def test_no_controller_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "cgroup.subtree_control").write_text("cpu io\n")
    with pytest.raises(OSError, match="no memory controller"):
        find_controller(tmp_path, tmp_path)


def test_who_has_ended_has_no_memory(tmp_path: Path) -> None:
    with subprocess.Popen(["true"]) as process:
        # Ended, and not yet waited for: the kernel still lists it.
        os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
        (tmp_path / "pid").write_text(str(process.pid))
        with pytest.raises(ProcessLookupError):
            OpenRoom(tmp_path).usage()


def test_an_open_room_tells_the_resident_set_of_who_entered(tmp_path: Path) -> None:
    room = OpenRoom(tmp_path)
    assert room.usage() == Usage(0, 0, 0)
    (tmp_path / "pid").write_text(f"{os.getpid()}\n")
    usage = room.usage()
    assert usage.total == usage.anonymous + usage.file
    assert usage.anonymous > MIB
    assert usage.file > MIB
