"""Energy: of fake trees of sysfs files, and of samples that need no clock."""

import itertools
import os
import threading
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from models.packs.pack import Pack
from pipeline.benchmark.configuration import BenchConfiguration
from pipeline.benchmark.run import BenchOptions, bench_pipeline
from pipeline.devices.cpu import CpuDevice
from pipeline.energy import EnergyMeter, NoMeter, Package, find_meter, find_rails, integrate
from pipeline.program.program import Program
from pipeline.schedule.architectures import ARCHITECTURES

NEVER = threading.TIMEOUT_MAX
SEQ = BenchConfiguration("seq", ARCHITECTURES["seq"])
NOTHING = "not available here: no INA3221 power rails, no RAPL packages"

_watts = st.floats(-50, 500)
_moments = st.lists(st.floats(0, 1000), min_size=1, max_size=20, unique=True).map(sorted)


def write(path: Path, text: object) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"{text}\n", encoding="utf-8")
    return path


def linked(folder: Path) -> Path:
    """Make a folder as sysfs does: a link to that of the device."""
    device = folder.parent / ".devices" / folder.name
    device.mkdir(parents=True)
    folder.symlink_to(device)
    return folder


def chip(
    root: Path, labels: list[str | None], address: str = "1-0040", name: str = "ina3221"
) -> Path:
    """Make a chip: each channel 5 V and 1, 2, 3 A; None is a channel without a label's file."""
    folder = linked(root / "bus/i2c/devices" / address) / "hwmon" / f"hwmon{address[-1]}"
    write(folder / "name", name)
    for channel, label in enumerate(labels, 1):
        if label is not None:
            write(folder / f"in{channel}_label", label)
        write(folder / f"in{channel}_enable", 1)
        write(folder / f"in{channel}_input", 5000)
        write(folder / f"curr{channel}_input", channel * 1000)
    write(folder / "in7_label", "sum of shunt voltages")
    write(folder / "in7_input", 30)
    return folder


def zone(root: Path, path: str, name: str, energy: int) -> Path:
    folder = linked(root / "class/powercap" / path)
    write(folder / "name", name)
    write(folder / "max_energy_range_uj", 1_000_000)
    return write(folder / "energy_uj", energy)


def meter(root: Path, period: float = NEVER) -> EnergyMeter:
    """Find a meter whose clock says 0, 1, 2... seconds, each time it is asked."""
    return find_meter(root, period, itertools.count().__next__)


def sampling() -> int:
    return [thread.name for thread in threading.enumerate()].count("energy")


def test_rails_of_several_chips_are_summed_in_order(tmp_path: Path) -> None:
    chip(tmp_path, ["CV", "VDDRQ", "SYS5V"], "1-0041")
    chip(tmp_path, ["VDD_GPU", "CPU", "SOC"])
    chip(tmp_path, ["vin", "vout"], "2-0020", "pmbus")
    found = meter(tmp_path)
    assert found.source == "ina3221: VDD_GPU, CPU, SOC, CV, VDDRQ, SYS5V"
    with found.measure() as energy:
        assert energy.joules is None
    # Sampled at 0 and 3; the body ran from 1 to 2.
    assert energy.joules == pytest.approx(2 * (5 + 10 + 15))
    assert energy.source == found.source


def test_channels_without_a_label_or_switched_off_do_not_count(tmp_path: Path) -> None:
    chip(tmp_path, [None, "", "SOC"])
    off = chip(tmp_path, ["CV", "NC", "SYS5V"], "1-0041")
    write(off / "in2_enable", 0)
    (off / "in2_input").unlink()  # the kernel refuses to read it
    assert [rail.label for rail in find_rails(tmp_path)] == ["SOC", "CV", "SYS5V"]


def test_the_input_of_the_module_is_not_counted_twice(tmp_path: Path) -> None:
    chip(tmp_path, ["VDD_IN", "VDD_CPU_GPU_CV", "VDD_SOC"])
    with meter(tmp_path).measure() as energy:
        pass
    assert energy.source == "ina3221: VDD_IN"
    assert energy.joules == pytest.approx(5)


def test_a_negative_current_is_subtracted(tmp_path: Path) -> None:
    write(chip(tmp_path, ["GPU", "CPU"]) / "curr1_input", -1000)
    with meter(tmp_path).measure() as energy:
        pass
    assert energy.joules == pytest.approx(10 - 5)


def test_sampling_ends_with_the_measurement(tmp_path: Path) -> None:
    chip(tmp_path, ["GPU"])
    with meter(tmp_path, period=0).measure() as energy:
        assert sampling() == 1
    assert sampling() == 0
    assert energy.joules is not None
    assert energy.joules > 0


def test_sampling_ends_with_a_run_that_fails(tmp_path: Path) -> None:
    chip(tmp_path, ["GPU"])

    def fail() -> None:
        with meter(tmp_path).measure():
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    assert sampling() == 0


@pytest.mark.parametrize("period", [0, NEVER])
def test_a_rail_that_vanishes_costs_the_joules_only(tmp_path: Path, period: float) -> None:
    rail = chip(tmp_path, ["GPU", "CPU"]) / "curr2_input"
    found = meter(tmp_path, period)
    with found.measure() as energy:
        rail.unlink()
    assert energy.joules is None
    assert energy.source == f"not available here: {rail}: No such file or directory"
    write(rail, 2000)
    with found.measure() as energy:
        pass
    assert energy.joules is not None


@pytest.mark.parametrize("text", ["", "many", "1.5"])
def test_a_rail_that_is_no_number(tmp_path: Path, text: str) -> None:
    rail = write(chip(tmp_path, ["GPU"]) / "in1_input", text)
    reason = f"not available here: {rail}: not a number, no RAPL packages"
    assert find_meter(tmp_path).source == reason


def test_packages_are_summed_and_nothing_inside_or_around_them(tmp_path: Path) -> None:
    first = zone(tmp_path, "intel-rapl:0", "package-0", 100)
    second = zone(tmp_path, "intel-rapl:1", "package-1", 999_990)
    others = [
        zone(tmp_path, "intel-rapl:0:0", "core", 1),
        zone(tmp_path, "intel-rapl:0:1", "dram", 1),
        zone(tmp_path, "intel-rapl:2", "psys", 1),
        zone(tmp_path, "intel-rapl-mmio:0", "package-0", 1),
    ]
    found = find_meter(tmp_path)
    assert found.source == "rapl: package-0, package-1"
    with found.measure() as energy:
        write(first, 600)
        write(second, 10)  # past its end, at 1,000,000
        for other in others:
            write(other, 500_000)
    assert energy.joules == pytest.approx(520e-6)


@given(st.integers(1, 10**12), st.data())
def test_a_counter_may_turn_once(limit: int, data: st.DataObject) -> None:
    before = data.draw(st.integers(0, limit - 1))
    spent = data.draw(st.integers(0, limit - 1))
    package = Package("package-0", Path("energy_uj"), limit)
    assert package.joules(before, (before + spent) % limit) == spent / 1e6


def test_a_package_that_vanishes_costs_the_joules_only(tmp_path: Path) -> None:
    counter = zone(tmp_path, "intel-rapl:0", "package-0", 100)
    found = find_meter(tmp_path)
    with found.measure() as energy:
        counter.unlink()
    assert (energy.joules, str(counter) in energy.source) == (None, True)
    with found.measure() as energy:
        write(counter, 200)
    assert (energy.joules, str(counter) in energy.source) == (None, True)


def test_a_counter_that_only_root_may_read(tmp_path: Path) -> None:
    counter = zone(tmp_path, "intel-rapl:0", "package-0", 100)
    counter.chmod(0)
    if os.access(counter, os.R_OK):
        pytest.skip("root may read everything")
    assert find_meter(tmp_path).source.endswith(f"{counter}: Permission denied")


def test_a_counter_that_nobody_may_read(tmp_path: Path) -> None:
    counter = zone(tmp_path, "intel-rapl:0", "package-0", 100)
    counter.unlink()
    counter.mkdir()  # refused to root too
    assert find_meter(tmp_path).source.endswith(f"rails, {counter}: Is a directory")


def test_a_board_comes_before_a_processor(tmp_path: Path) -> None:
    rails = chip(tmp_path, ["GPU"])
    zone(tmp_path, "intel-rapl:0", "package-0", 100)
    assert find_meter(tmp_path).source == "ina3221: GPU"
    (rails / "curr1_input").unlink()
    assert find_meter(tmp_path).source == "rapl: package-0"


def test_nothing_there_is_said(tmp_path: Path) -> None:
    found = find_meter(tmp_path)
    assert isinstance(found, NoMeter)
    with found.measure() as energy:
        pass
    assert (found.source, energy.source, energy.joules) == (NOTHING, NOTHING, None)


def test_a_reason_is_one_line(tmp_path: Path) -> None:
    write(chip(tmp_path / "a\nb", ["GPU"]) / "in1_input", "")
    assert "\n" not in find_meter(tmp_path / "a\nb").source


@given(_moments, _watts, st.floats(-10, 1010), st.floats(-10, 1010))
def test_constant_power_is_exact(moments: list[float], watts: float, a: float, b: float) -> None:
    start, stop = sorted((a, b))
    joules = integrate([(moment, watts) for moment in moments], start, stop)
    assert joules == pytest.approx(watts * (stop - start), abs=1e-6)


@given(_moments, _watts, _watts, st.data())
def test_linear_power_is_exact(
    moments: list[float], watts: float, slope: float, data: st.DataObject
) -> None:
    within = st.floats(moments[0], moments[-1])
    start, stop = sorted((data.draw(within), data.draw(within)))
    samples = [(moment, watts + slope * moment) for moment in moments]
    expected = (stop - start) * (watts + slope * (start + stop) / 2)
    assert integrate(samples, start, stop) == pytest.approx(expected, rel=1e-6, abs=1e-3)


@given(st.data(), _moments, *[st.floats(-10, 1010)] * 3)
def test_parts_add_up(
    data: st.DataObject, moments: list[float], a: float, b: float, c: float
) -> None:
    start, middle, stop = sorted((a, b, c))
    samples = [(moment, data.draw(_watts)) for moment in moments]
    parts = integrate(samples, start, middle) + integrate(samples, middle, stop)
    assert parts == pytest.approx(integrate(samples, start, stop), rel=1e-6, abs=1e-3)


def test_a_benchmark_has_the_energy_of_each_row(tiny_pack: Pack, tmp_path: Path) -> None:
    program = Program.as_compiled(tiny_pack)
    rail = chip(tmp_path, ["GPU"]) / "curr1_input"
    document = bench_pipeline(program, [SEQ], BenchOptions(3, peers=()), meter=meter(tmp_path))
    assert document["energy"] == "ina3221: GPU"
    for row in document["rows"]:
        assert row["energy_joules"] == pytest.approx({"median": 5, "p95": 5, "max": 5})

    def vanish(done: int) -> None:
        if done == 2:
            rail.unlink()

    document = bench_pipeline(
        program,
        [SEQ],
        BenchOptions(3, device=CpuDevice(1), peers=()),
        progress=vanish,
        meter=meter(tmp_path),
    )
    assert document["energy"] == f"not available here: {rail}: No such file or directory"
    assert {row["energy_joules"] for row in document["rows"]} == {None}


def test_a_benchmark_without_a_meter_says_so(tiny_pack: Pack, tmp_path: Path) -> None:
    document = bench_pipeline(
        Program.as_compiled(tiny_pack), [], BenchOptions(1, peers=()), meter=find_meter(tmp_path)
    )
    assert document["energy"] == NOTHING
    assert {row["energy_joules"] for row in document["rows"]} == {None}
