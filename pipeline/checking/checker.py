"""What a finished pack must stand before it is visible: a run beside its source, on its device.

What runs it is imported then: while a pack is compiled it would only take memory.
"""

from collections.abc import Callable, Iterable
from contextlib import ExitStack, closing
from pathlib import Path
from typing import TYPE_CHECKING

from PIL import Image

from models.packs.pack import read_pack
from models.packs.target import Target
from models.progress import Progress
from pipeline.checking import Depth

if TYPE_CHECKING:
    from pipeline.checking.find_fault import FaultFinder
    from pipeline.devices.base import Device


def checker(
    source: Path,
    target: Target,
    warn: Callable[[str], None],
    progress: Progress,
    *,
    depth: Depth,
    pictures: Callable[[], Iterable[Image.Image]] | None = None,
    free: Callable[[], int | None] | None = None,
) -> Callable[[Path, Path], None]:
    """Return what compares a finished pack with ``source``; ``warn`` gets what cannot be compared.

    ``depth``, ``free``: as for ``Trials``. ``pictures``: as for ``check_pack``.
    """

    def accept(folder: Path, reference: Path) -> None:
        from pipeline.checking.check import Reference, check_pack
        from pipeline.checking.one_thread import one_thread
        from pipeline.checking.trials import Trials
        from pipeline.devices.base import DeviceError

        pack, trials = read_pack(folder), None
        with ExitStack() as stack:
            try:
                device = stack.enter_context(closing(_device_of(target)))
            except DeviceError as exc:
                warn(f"{source}: the source was run, the pack was not: {exc}")
            else:
                single = stack.enter_context(one_thread(pack, device))
                trials = Trials(pack, device, depth, single, free)
            notes = check_pack(pack, Reference(reference, source), trials, progress, pictures)
        for note in notes:
            warn(f"{source}: {note}")

    return accept


def fault_finder() -> "FaultFinder":
    """Return what finds the pass that makes a network wrong: an observer of passes."""
    from pipeline.checking.find_fault import FaultFinder

    return FaultFinder()


def _device_of(target: Target) -> "Device":
    """Return the device that packs for ``target`` run on.

    Raises:
        DeviceError: this machine has none.
    """
    from pipeline.devices.base import DeviceError
    from pipeline.devices.find import open_device

    device = open_device("cpu" if target.capability is None else "cuda")
    if not target.runs_on(device.target):
        device.close()
        raise DeviceError(f"it is for {target.isa}, the device is {device.target.isa}")
    return device
