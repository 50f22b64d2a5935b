"""The curve of a disk: measured once for all packs, as long as it holds."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from models.packs.pack import Pack
from models.records import plain, read_record
from pipeline.devices.cpu import CpuDevice
from pipeline.measuring import profiling
from pipeline.measuring.profiling import profile_pack
from pipeline.measuring.transfers import DEPTHS, FileReads
from pipeline.profiles.disk_curves import MAX_AGE_DAYS, DiskCurves, default_file
from pipeline.profiles.machine import Machine
from pipeline.profiles.times import ReadTime
from tests.examples import over
from tests.pipeline.made_profiles import MACHINE, always

NOW = datetime(2026, 1, 1, tzinfo=UTC)
DAY = timedelta(days=1)
READS = tuple(ReadTime(n_bytes=1 << 16, depth=depth, seconds=always(1e-3)) for depth in DEPTHS)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "cache" / "layerstream" / "disks.json"


def test_what_is_saved_is_there_for_another_process(path: Path) -> None:
    assert DiskCurves(path).reads(MACHINE, NOW) == ()
    DiskCurves(path).save(MACHINE, READS, NOW)
    assert DiskCurves(path).reads(MACHINE, NOW) == READS


@over(
    "field, value",
    [
        ("device", "/dev/other"),
        ("file_system", "xfs"),
        ("reader", "buffered"),
        ("reader_priority", "usual"),
        ("kernel", "Linux 7"),
        ("cpu", "another"),
        ("huge_pages", False),
        ("pace", 1e9),
    ],
)
def test_another_disk_or_reader_has_another_curve(
    tmp_path: Path, field: str, value: object
) -> None:
    curves = DiskCurves(tmp_path / f"{field}.json")
    other = read_record(Machine, plain(MACHINE) | {field: value})
    curves.save(MACHINE, READS, NOW)
    assert curves.reads(other, NOW) == ()
    curves.save(other, READS[:1], NOW)
    assert curves.reads(other, NOW) == READS[:1]
    assert curves.reads(MACHINE, NOW) == READS


def test_devices_of_one_disk_share_its_curve(path: Path) -> None:
    DiskCurves(path).save(MACHINE, READS, NOW)
    assert DiskCurves(path).reads(replace(MACHINE, threads=1), NOW) == READS


def test_a_curve_is_as_old_as_its_first_reads(path: Path) -> None:
    curves = DiskCurves(path)
    curves.save(MACHINE, READS[:1], NOW)
    late = NOW + (MAX_AGE_DAYS - 1) * DAY
    curves.save(MACHINE, READS, late)
    assert curves.reads(MACHINE, late) == READS
    assert curves.reads(MACHINE, late + DAY) == ()
    assert curves.reads(MACHINE, NOW - DAY) == ()  # a clock that was set back
    DiskCurves(path, renew=True).save(MACHINE, READS, late)
    assert curves.reads(MACHINE, late + DAY) == READS


@over("text", ["", "{}x", '{"curves": [{"reads": []}]}', '{"format_version": 2}'])
def test_a_damaged_file_is_ignored(tmp_path: Path, text: str) -> None:
    path = tmp_path / "disks.json"
    path.write_text(text)
    assert DiskCurves(path).reads(MACHINE, NOW) == ()
    DiskCurves(path).save(MACHINE, READS, NOW)
    assert DiskCurves(path).reads(MACHINE, NOW) == READS


def test_without_a_folder_nothing_is_saved(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "file"
    file.touch()
    for curves in (DiskCurves(None), DiskCurves(file / "disks.json")):
        curves.save(MACHINE, READS, NOW)
        assert curves.reads(MACHINE, NOW) == ()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert default_file() == tmp_path / "layerstream" / "disks.json"


def test_a_second_profile_measures_no_disk(
    tiny_pack: Pack, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(profiling, "others_share", lambda *_: 0.0)
    first = profile_pack(tiny_pack, CpuDevice(), 1, curves=DiskCurves(path))

    def refused(*_: object, **__: object) -> list[float]:
        raise AssertionError("a read is timed")

    with monkeypatch.context() as patched:
        patched.setattr(FileReads, "row", refused)
        assert profile_pack(tiny_pack, CpuDevice(), 1, curves=DiskCurves(path)).reads == first.reads
        with pytest.raises(AssertionError):
            profile_pack(tiny_pack, CpuDevice(), 1, curves=DiskCurves(path, renew=True))


def test_what_a_busy_machine_measured_is_not_saved(
    tiny_pack: Pack, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(profiling, "others_share", lambda *_: 0.5)
    assert profile_pack(tiny_pack, CpuDevice(), 1, curves=DiskCurves(path)).reads
    assert not path.exists()
