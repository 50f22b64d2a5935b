"""What pages memory really lies on: the kernel is asked for huge ones and may give others."""

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

_SMAPS = Path("/proc/self/smaps")
_POLICY = Path("/sys/kernel/mm/transparent_hugepage/enabled")


@dataclass(frozen=True)
class PageReport:
    """``huge_bytes`` of the ``touched_bytes`` lie on huge pages; ``reason``: why not all of them do."""

    touched_bytes: int
    huge_bytes: int
    reason: str


def report_pages(
    address: int, n_bytes: int, asked: bool, smaps: Path = _SMAPS, policy: Path = _POLICY
) -> PageReport:
    """Return what [address, address + n_bytes) of this process lies on.

    ``asked``: huge pages were asked for. Reads all of ``smaps``, which takes some milliseconds.
    """
    try:
        with smaps.open() as lines:
            touched, huge = count_pages(lines, address, n_bytes)
    except OSError as exc:
        return PageReport(0, 0, f"{smaps}: {exc.strerror or exc}")
    if not touched:
        return PageReport(0, 0, "the memory has not been touched yet")
    return PageReport(touched, huge, "" if huge >= touched else _reason(asked, policy))


def count_pages(lines: Iterable[str], address: int, n_bytes: int) -> tuple[int, int]:
    """Return how many bytes of [address, address + n_bytes) are in memory, and on huge pages.

    The kernel counts whole mappings: of one that begins before or ends behind the range, at most as
    much as overlaps is counted.
    """
    touched = huge = overlap = 0
    for line in lines:
        name, _, value = line.partition(" ")
        if not name.endswith(":"):
            start, _, end = name.partition("-")
            overlap = min(int(end, 16), address + n_bytes) - max(int(start, 16), address)
        elif overlap > 0 and name in {"Rss:", "AnonHugePages:"}:
            counted = min(int(value.split()[0]) << 10, overlap)
            if name == "Rss:":
                touched += counted
            else:
                huge += counted
    return touched, huge


def _reason(asked: bool, policy: Path) -> str:
    if not asked:
        return (
            "huge pages were not asked for: the memory is smaller than one, or the kernel has none"
        )
    try:
        text = policy.read_text()
    except OSError:
        return "the kernel has no transparent huge pages"
    if "[never]" in text:
        return f"{policy} says never"
    return "the kernel had no free huge page when the memory was touched"
