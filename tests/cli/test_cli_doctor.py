"""``layerstream doctor``: defects that are planted are found, and a healthy machine has none."""

import contextlib
import json
import os
import pwd
import resource
import socket
import tempfile
from collections.abc import Iterable
from pathlib import Path
from shutil import copytree, rmtree

import pytest

from cli import checks, doctor
from cli.checks import Finding, worst
from cli.printing.sentences import typed
from loader.native.compiling import LibraryError
from loader.readers.disk import Disk, PacedReader
from loader.readers.files import BufferedReader, open_reader
from models.packs.pack import open_pack
from models.sizes import format_size, parse_size
from pipeline.devices.cpu import CpuDevice
from pipeline.measuring.profiling import profile_pack
from pipeline.profiles.profile_file import save_profile
from server.memory.process_memory import MemoryLimit
from server.operation.process import ProcessMemory
from tests.server.support import FAILED, Cli, Packs

MIB = 1 << 20
POLICY = "sys/devices/system/cpu/cpufreq/policy0"


def found(findings: Iterable[Finding], check: str) -> Finding:
    (finding,) = (each for each in findings if each.check == check)
    return finding


def is_told(finding: Finding, verdict: str, *words: str) -> None:
    """Every defect has a verdict, a reason with ``words``, and a remedy."""
    assert (finding.verdict, bool(finding.remedy)) == (verdict, verdict != "ok")
    assert all(word in finding.reason for word in words), finding.reason


def _write(path: Path, said: object) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"{said}\n")


def tree(root: Path, files: dict[str, object]) -> Path:
    for name, said in files.items():
        _write(root / name, said)
    return root


@pytest.fixture
def device() -> CpuDevice:
    return CpuDevice(1)


@pytest.fixture(scope="module")
def profiled(packs: Packs, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A pack with a profile of this machine."""
    folder = tmp_path_factory.mktemp("profiled") / "tiny"
    copytree(packs.repository / "tiny", folder)
    pack = open_pack(folder)
    save_profile(profile_pack(pack, CpuDevice(1), 1), pack)
    return folder


def test_a_sound_pack(profiled: Path, device: CpuDevice) -> None:
    told = list(checks.findings(profiled, device))
    is_told(found(told, "tiny"), "ok", "version 1")
    assert found(told, "tiny: profile").verdict in ("ok", "warn")  # others may have been busy
    assert found(told, "tiny: reads").reason.count("profile's time") == 1


def test_weights_are_verified_by_themselves_where_that_is_soon_over(
    profiled: Path, device: CpuDevice, tmp_path: Path
) -> None:
    copytree(profiled, tmp_path / "tiny")
    weights = open_pack(tmp_path / "tiny").weights_path
    assert found(checks.findings(tmp_path / "tiny", device), "tiny: checksums").verdict == "ok"
    with weights.open("r+b") as file:  # one bit
        file.seek(weights.stat().st_size // 2)
        byte = file.read(1)[0]
        file.seek(-1, os.SEEK_CUR)
        file.write(bytes([byte ^ 1]))
    finding = found(checks.findings(tmp_path / "tiny", device), "tiny: checksums")
    is_told(finding, "fail", "weights.bin", "not those of the manifest")


def test_weights_that_take_long_are_verified_on_request(
    profiled: Path, device: CpuDevice, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(checks, "_FULL_SECONDS", 0.0)
    finding = found(checks.findings(profiled, device), "tiny: checksums")
    assert finding.reason.startswith("not verified: ")
    assert "--full" in finding.reason
    finding = found(checks.findings(profiled, device, full=True), "tiny: checksums")
    assert finding.reason.startswith("all ")


UNIT = "usr/lib/systemd/system/layerstream.service"


def test_the_user_of_the_service_is_that_of_its_unit(tmp_path: Path) -> None:
    assert doctor.service_user(tmp_path) is None
    _write(tmp_path / UNIT, "[Service]\nUser=layerstream\nGroup=layerstream")
    assert doctor.service_user(tmp_path) == "layerstream"
    drop_in = "etc/systemd/system/layerstream.service.d/user.conf"
    _write(tmp_path / drop_in, "[Service]\nUser=camera")
    assert doctor.service_user(tmp_path) == "camera"


def test_files_are_looked_at_as_the_user_of_the_service(
    profiled: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Root reads everything, and the service does not: here by a fake of whom the system lets in."""
    keys = tmp_path / "keys"
    keys.touch()
    me = pwd.getpwuid(os.geteuid())
    monkeypatch.setattr(doctor, "_acting_as", lambda _: contextlib.nullcontext())
    (finding,) = doctor.check_user(me.pw_name, [profiled], [keys, None])
    is_told(finding, "ok", f"{me.pw_name} reads all")
    refused = {keys: "Permission denied"}
    monkeypatch.setattr(doctor, "_refusal", lambda file: refused.get(file, ""))
    (finding,) = doctor.check_user(me.pw_name, [profiled], [keys])
    is_told(finding, "fail", f"{me.pw_name} cannot read {keys}: Permission denied")
    assert list(doctor.check_user(None, [profiled], [keys])) == []
    (finding,) = doctor.check_user("nobody-of-that-name", [profiled], [])
    is_told(finding, "fail", "no user")


def test_another_user_cannot_check_as_that_of_the_service(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1)
    (finding,) = doctor.check_user("root", [], [])
    is_told(finding, "warn", "root serves")


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can act as another user")
def test_root_acts_as_the_user_and_is_root_afterwards() -> None:
    with tempfile.TemporaryDirectory(dir="/var/tmp") as folder:
        file = Path(folder, "file")
        file.touch(mode=0o600)
        (finding,) = doctor.check_user("nobody", [], [file])
        is_told(finding, "fail", f"nobody cannot read {file}: Permission denied")
    assert (os.geteuid(), os.getegid()) == (0, 0)


def test_a_budget_that_is_too_small_for_the_packs(profiled: Path, device: CpuDevice) -> None:
    for n_bytes, verdict, words in (
        (-3 * MIB, "fail", "takes 3.0 MiB more than --memory"),
        (4096, "fail", "a budget of"),
        (64 * MIB, "ok", "fit in 64.0 MiB; they do from"),
    ):
        told = list(checks.fitting([profiled], n_bytes, device))
        is_told(found(told, "budget"), verdict, words)
    assert list(checks.fitting([], 64 * MIB, device)) == []


def test_what_each_pack_needs_is_what_inspect_says(
    cli: Cli, packs: Packs, device: CpuDevice
) -> None:
    """And all of them fit in what all are said to need, and in nothing less."""
    paths = [packs.repository / name for name in ("tiny", "pair")]
    told = list(checks.fitting(paths, None, device))
    assert [each.check for each in told] == ["tiny: memory", "pair: memory"]
    for path, each in zip(paths, told, strict=True):
        summary = cli("inspect", path, "--json").document
        least = typed(summary["smallest_budget_bytes"])
        is_told(each, "ok", f"from a budget of {least} up", format_size(summary["weight_bytes"]))
    *_, budget = checks.fitting(paths, 64 * MIB, device)
    enough = parse_size(budget.reason.split()[-2])
    assert found([*checks.fitting(paths, enough, device)], "budget").verdict == "ok"
    assert found([*checks.fitting(paths, enough * 9 // 10, device)], "budget").verdict == "fail"


def test_a_file_system_without_o_direct(profiled: Path, device: CpuDevice) -> None:
    told = checks.findings(profiled, device, Disk(BufferedReader, BufferedReader))
    is_told(found(told, "tiny: O_DIRECT"), "warn", "page cache")


def test_a_pack_in_memory(profiled: Path, device: CpuDevice) -> None:
    memory = Path("/dev/shm", f"layerstream-doctor-{os.getpid()}")
    if not memory.parent.is_dir():
        pytest.skip("no /dev/shm here")
    copytree(profiled, memory / "tiny")
    try:
        told = list(checks.findings(memory / "tiny", device))
    finally:
        rmtree(memory)
    is_told(found(told, "tiny: O_DIRECT"), "warn", "memory")


def test_a_slow_disk(profiled: Path, device: CpuDevice) -> None:
    disk = Disk(open_reader, lambda path: PacedReader(open_reader(path), 2e7))
    is_told(found(checks.findings(profiled, device, disk), "tiny: reads"), "fail", "times")


def test_a_profile_of_another_machine(profiled: Path, device: CpuDevice, tmp_path: Path) -> None:
    foreign = Path(copytree(profiled, tmp_path / "tiny"))
    file = foreign / "1" / "profile.json"
    document = json.loads(file.read_text())
    document["machine"]["cpu"] = "Another"
    file.write_text(json.dumps(document))
    is_told(found(checks.findings(foreign, device), "tiny: profile"), "warn", "cpu Another")
    file.unlink()
    is_told(found(checks.findings(foreign, device), "tiny: profile"), "warn", "none")


@pytest.mark.parametrize("inner", ["", "1"])
def test_a_pack_has_the_name_of_its_folder(
    inner: str, profiled: Path, device: CpuDevice, tmp_path: Path
) -> None:
    """As a server has; its manifest says what its source was called."""
    other = Path(copytree(profiled, tmp_path / "other"))
    is_told(found(checks.findings(other / inner, device), "other"), "ok", "version 1")


def test_a_damaged_pack(profiled: Path, device: CpuDevice, tmp_path: Path) -> None:
    broken = Path(copytree(profiled, tmp_path / "tiny"))
    (broken / "1" / "weights.bin").unlink()
    (finding,) = checks.findings(broken, device)
    is_told(finding, "fail", "weights.bin")


def test_too_few_files_too_many_threads_and_a_port_that_is_taken(
    cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(resource, "getrlimit", lambda _: (480, 480))
    monkeypatch.setattr(resource, "setrlimit", lambda *_: None)
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        ports = ("--port", port, "--grpc-port", port)
        done = cli("doctor", *ports, "--threads", 64, "--json")
    assert done.code == FAILED
    told = [Finding(**each) for each in json.loads(done.out)["findings"]]
    is_told(found(told, "open files"), "warn", "of 256 connections")
    is_told(found(told, "port"), "fail", str(port), "--port")
    is_told(found(told, "gRPC port"), "fail", str(port), "--grpc-port")
    is_told(found(told, "threads"), "warn", "64 of ONNX Runtime on")


def test_a_control_group_that_is_too_small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "memory_limit", lambda: MemoryLimit(64 * MIB, 0))
    monkeypatch.setattr(doctor, "machine_bytes", lambda: (64 * MIB, "the control group allows"))
    monkeypatch.setattr(doctor, "free_bytes", lambda: 32 * MIB)
    monkeypatch.setattr(doctor, "process_memory", lambda: ProcessMemory(8 * MIB, 0))
    told = list(doctor.check_memory(128 * MIB))
    is_told(found(told, "control group"), "fail", "128.0 MiB", "the control group allows")
    assert found(told, "control group").remedy.startswith("MemoryMax=128M,")  # as systemd reads it
    is_told(found(told, "free memory"), "warn", "40.0 MiB of 64.0 MiB")
    is_told(found(list(doctor.check_memory(None)), "free memory"), "ok", "40.0 MiB of 64.0 MiB")
    assert worst(list(doctor.check_memory(24 * MIB))) == "ok"


def test_busy_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checks, "others_share", lambda *_: 0.5)
    is_told(checks.other_work(0.0), "warn", "others take 50% of the cores now")
    monkeypatch.setattr(checks, "others_share", lambda *_: 0.0)
    is_told(checks.other_work(0.0), "ok", "others take 0%")


def test_keys_and_certificates(tmp_path: Path) -> None:
    is_told(doctor.check_keys(None), "ok")
    is_told(doctor.check_keys(tmp_path / "missing"), "fail", "missing")
    (tmp_path / "damaged").write_text("rubbish = [")
    is_told(damaged := doctor.check_keys(tmp_path / "damaged"), "fail", "damaged:1")
    assert "key add" not in damaged.remedy  # which would refuse it, too
    is_told(doctor.check_certificate(None, None), "ok")
    (tmp_path / "wrong.pem").write_text("no certificate")
    is_told(doctor.check_certificate(tmp_path / "wrong.pem", None), "fail", "wrong.pem")


def test_keys_that_anybody_may_read(cli: Cli, tmp_path: Path) -> None:
    file = tmp_path / "keys"
    assert cli("key", "add", file, "me").code == 0
    is_told(doctor.check_keys(file), "ok", "1")
    file.chmod(0o644)
    is_told(doctor.check_keys(file), "warn", "anybody")


def test_no_native_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checks, "find_library", lambda: LibraryError("not built"))
    told = checks.processor(checks.ROOT)
    is_told(found(told, "native kernels"), "warn", "not built")


def test_no_native_reads(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checks, "find_reader", lambda: LibraryError("not built"))
    is_told(found(checks.processor(checks.ROOT), "native reads"), "warn", "not built")


@pytest.mark.parametrize(
    ("files", "check", "words"),
    [
        (
            {"sys/kernel/mm/transparent_hugepage/enabled": "always madvise [never]"},
            "huge pages",
            "never",
        ),
        ({"proc/meminfo": "SwapTotal: 2048 kB"}, "swap", "2.0 MiB"),
        (
            {"sys/devices/system/clocksource/clocksource0/current_clocksource": "hpet"},
            "clock",
            "hpet",
        ),
        ({f"{POLICY}/scaling_governor": "powersave"}, "core clocks", "powersave"),
        (
            {f"{POLICY}/scaling_max_freq": 1_000_000, f"{POLICY}/cpuinfo_max_freq": 2_000_000},
            "core clocks",
            "policy0",
        ),
        (
            {"sys/devices/system/cpu/online": "0-3", "sys/devices/system/cpu/present": "0-7"},
            "cores",
            "0-3 of 0-7",
        ),
        (
            {
                "sys/class/thermal/thermal_zone0/temp": 84_000,
                "sys/class/thermal/thermal_zone0/type": "CPU-therm",
                "sys/class/thermal/thermal_zone0/trip_point_0_type": "passive",
                "sys/class/thermal/thermal_zone0/trip_point_0_temp": 86_000,
            },
            "heat",
            "CPU-therm has 84 of 86 C",
        ),
        (
            {"proc/self/cgroup": "0::/a/b", "sys/fs/cgroup/a/cpu.max": "50000 100000"},
            "threads",
            "0.5 cores",
        ),
        (
            {
                "proc/self/cgroup": "5:cpu,cpuacct:/a\n4:memory:/",
                "sys/fs/cgroup/cpu,cpuacct/a/cpu.cfs_quota_us": 50_000,
                "sys/fs/cgroup/cpu,cpuacct/a/cpu.cfs_period_us": 100_000,
            },
            "threads",
            "0.5 cores",
        ),
    ],
)
def test_what_the_kernel_says(
    files: dict[str, object], check: str, words: str, tmp_path: Path
) -> None:
    root = tree(tmp_path, files)
    told = [
        *checks.pages(root),
        *checks.clocks(root),
        checks.cores_online(root),
        checks.heat(root),
        checks.threads(root, 1),
    ]
    is_told(found(told, check), "warn", words)


def test_a_xavier(tmp_path: Path) -> None:
    """Board, mode, clocks and rails, as JetPack 5 has them."""
    chip = "sys/bus/i2c/devices/1-0040/hwmon/hwmon3"
    root = tree(
        tmp_path,
        {
            "proc/device-tree/model": "NVIDIA Jetson AGX Xavier Developer Kit\0",
            "var/lib/nvpmodel/status": "pmode:0002 fmode:quiet",
            f"{POLICY}/scaling_min_freq": 2_265_600,
            f"{POLICY}/scaling_max_freq": 2_265_600,
            "sys/class/devfreq/17000000.gv11b/cur_freq": 318_750_000,
            "sys/class/devfreq/17000000.gv11b/max_freq": 1_377_000_000,
            f"{chip}/name": "ina3221x",
            f"{chip}/in1_label": "GPU",
            f"{chip}/in1_enable": 1,
            f"{chip}/in1_input": 5000,
            f"{chip}/curr1_input": 1000,
        },
    )
    told = list(checks.power(root))
    is_told(found(told, "power"), "ok", "ina3221: GPU")
    is_told(found(told, "board"), "ok", "Xavier")
    is_told(found(told, "power mode"), "warn", "2")
    is_told(found(told, "board clocks"), "ok", "held", "GPU 319 of 1377 MHz")
    _write(root / "var/lib/nvpmodel/status", "pmode:0000 fmode:quiet")
    is_told(found(checks.power(root), "power mode"), "ok", "0")


def test_the_command(cli: Cli, packs: Packs) -> None:
    pack = packs.repository / "tiny"
    document = cli("doctor", pack, "--memory", "256MiB", "--port", 0, "--json").document
    checks = [each["check"] for each in document["findings"]]
    assert len(checks) == len({*checks}) >= 20
    assert document["verdict"] == worst([Finding(**each) for each in document["findings"]])
    shown = cli("doctor", pack, "--budget", "3MiB", "--port", 0)
    assert "tiny: O_DIRECT" in shown.out
    missing = cli("doctor", pack.parent / "missing", "--port", 0)
    assert missing.code == FAILED
    assert "no such folder" in missing.out
    assert "REPOSITORY/NAME" in missing.out
    assert "larger" not in missing.out  # no memory would make it a pack


def test_grpc_is_counted_and_its_port_looked_at(cli: Cli, packs: Packs) -> None:
    command = ("doctor", packs.repository / "tiny", "--memory", "256MiB", "--port", 0, "--json")
    alone, with_grpc = (
        {each["check"]: each["reason"] for each in cli(*command, *more).document["findings"]}
        for more in ((), ("--grpc-port", 0))
    )
    assert "free" in with_grpc["gRPC port"]
    assert "gRPC port" not in alone
    assert with_grpc["budget"] != alone["budget"]
