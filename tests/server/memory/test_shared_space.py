"""Whether activations can be shared: as a device says, for a service and for commands alike."""

import errno
from pathlib import Path

import pytest

from cli.arguments import options
from pipeline.devices.base import Device
from pipeline.devices.cpu import CpuDevice
from pipeline.devices.device_memory import Space
from server.memory.shared_space import possible, shared_space
from server.memory.sharing import Activations
from tests.server.support import Cli, Packs

EACH: tuple[Activations, ...] = ("auto", "own", "shared")


class Apart(CpuDevice):
    """A device whose memory has no pages that come as they are touched, as that of a GPU."""

    def reserve(self, capacity_bytes: int) -> Space | None:
        return None


class Refused(CpuDevice):
    """A system that gives no addresses."""

    def reserve(self, capacity_bytes: int) -> Space | None:
        raise OSError(errno.ENOMEM, "no addresses")


@pytest.mark.parametrize(
    ("device", "expected", "reasons"),
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
    monkeypatch.setattr(options, "open_device", lambda *_: Apart(1))
    listed = cli("list", packs.repository, "--budget", "64MiB", "--json").document
    assert listed["activations"] == "own"
    both: list[Path] = [packs.repository / name for name in ("tiny", "pair")]
    for asked in ("auto", "shared"):
        shown = cli("plan", *both, "--budget", "64MiB", "--activations", asked, "--json")
        assert not shown.document["in_turns"]
        assert ("this device cannot share" in shown.err) == (asked == "shared")
