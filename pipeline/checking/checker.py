"""What a finished pack must stand before it is visible: a run beside its source, on its device.

What runs it is imported then: while a pack is compiled it would only take memory.
"""

from collections.abc import Callable, Iterable
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING

from models.packs.pack import read_pack
from models.packs.target import Target
from models.progress import Progress
from pipeline.checking import Depth, threads_of

if TYPE_CHECKING:
    from PIL import Image

    from pipeline.checking.comparison import ComparisonRules
    from pipeline.checking.find_fault import FaultFinder
    from pipeline.devices.base import Device


def checker(
    source: Path,
    target: Target,
    warn: Callable[[str], None],
    progress: Progress,
    *,
    depth: Depth,
    pictures: "Callable[[], Iterable[Image.Image]] | None" = None,
    free: Callable[[], int | None] | None = None,
) -> Callable[[Path, Path], None]:
    """Return what compares a finished pack with ``source``; ``warn`` gets what cannot be compared.

    ``depth``, ``free``: as for ``Trials``. ``pictures``: as for ``check_pack``.
    """

    def accept(folder: Path, reference: Path) -> None:
        from pipeline.checking.tolerance import comparison_of

        comparison = comparison_of(reference, target, read_pack(folder).manifest.store)

        notes: list[str] = []
        for threads in threads_of(depth):
            notes += check_with_threads(
                *(folder, reference, source, comparison, threads, progress),
                depth=depth,
                pictures=pictures,
                free=free,
            )
        for note in dict.fromkeys(notes):
            warn(f"{source}: {note}")

    return accept


def check_with_threads(
    folder: Path,
    reference: Path,
    source: Path,
    comparison: "ComparisonRules",
    threads: int | None,
    progress: Progress,
    *,
    depth: Depth,
    pictures: "Callable[[], Iterable[Image.Image]] | None" = None,
    free: Callable[[], int | None] | None = None,
) -> list[str]:
    """Compare the pack in ``folder`` with ``reference``, the file ``source`` as it was read.

    ``threads``: of a CPU; None: all. With one other kernels run, in the same memory: once in each plan is
    enough. A process whose sessions share a pool of threads has the number of the first call, and compares
    nothing with another one.

    Raises:
        As ``check_pack``.
    """
    from pipeline.checking.check import Reference, check_pack
    from pipeline.checking.trials import Trials
    from pipeline.devices.base import DeviceError

    pack, model = read_pack(folder), Reference(reference, source)
    if threads is not None and pack.manifest.target.capability is not None:
        return []
    try:
        device = _device_of(pack.manifest.target, threads)
    except DeviceError as exc:
        if threads is not None:
            return []
        check_pack(pack, model, None, progress, pictures, comparison)
        return [f"the source was run, the pack was not: {exc}"]
    with closing(device):
        if threads is not None and device.threads != threads:
            return []
        trials = Trials(pack, device, depth, free, once=threads is not None)
        return check_pack(pack, model, trials, progress, pictures, comparison)


def fault_finder() -> "FaultFinder":
    """Return what finds the pass that makes a network wrong: an observer of passes."""
    from pipeline.checking.find_fault import FaultFinder

    return FaultFinder()


def _device_of(target: Target, threads: int | None) -> "Device":
    """Return the device that packs for ``target`` run on, with ``threads`` of the CPU; None: all.

    Raises:
        DeviceError: this machine has none.
    """
    from pipeline.devices.base import DeviceError
    from pipeline.devices.find import open_device

    device = open_device("cpu" if target.capability is None else "cuda", threads)
    if not target.runs_on(device.target):
        device.close()
        raise DeviceError(f"it is for {target.isa}, the device is {device.target.isa}")
    return device
