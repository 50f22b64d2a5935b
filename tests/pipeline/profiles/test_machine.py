"""What a processor is called."""

import platform
from pathlib import Path

import pytest

from pipeline.profiles.machine import cpu_model

INTEL = "processor\t: 0\nvendor_id\t: GenuineIntel\nmodel name\t: Intel(R) Xeon(R) CPU\n\n"
XAVIER = """processor\t: 0
model name\t: ARMv8 Processor rev 0 (v8l)
Features\t: fp asimd
CPU implementer\t: 0x4e
CPU architecture: 8
CPU part\t: 0x004

"""
UNNAMED = "processor\t: 0\nCPU implementer\t: 0x41\nCPU part\t: {}\n\n"


@pytest.mark.parametrize(
    ("cpuinfo", "board", "expected"),
    [
        (INTEL * 2, None, "Intel(R) Xeon(R) CPU"),
        (XAVIER * 2, "Jetson-AGX\0", "Jetson-AGX, 0x4e/0x004"),
        (XAVIER, None, "ARMv8 Processor rev 0 (v8l), 0x4e/0x004"),
        (
            UNNAMED.format("0xd03") * 2 + UNNAMED.format("0xd09") * 2,
            "Board\0",
            "Board, 0x41/0xd03 + 0x41/0xd09",
        ),
        (UNNAMED.format("0xd08"), None, f"{platform.machine()}, 0x41/0xd08"),
        ("processor\t: 0\n", "Board\0", platform.processor()),
        (None, None, platform.processor()),
    ],
)
def test_a_processor_has_the_name_that_the_kernel_gives_it(
    cpuinfo: str | None, board: str | None, expected: str, tmp_path: Path
) -> None:
    if cpuinfo is not None:
        (tmp_path / "cpuinfo").write_text(cpuinfo)
    if board is not None:
        (tmp_path / "device-tree").mkdir()
        (tmp_path / "device-tree" / "model").write_text(board)
    assert cpu_model(tmp_path) == expected
