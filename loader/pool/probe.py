"""Does io_uring work here? One read into real memory says so; kernels and containers may refuse it."""

import os
import select
from dataclasses import dataclass

from loader.buffers import PAGE_BYTES, Buffer
from loader.pool.uring import Ring

_WAIT_SECONDS = 2.0


@dataclass(frozen=True)
class Probe:
    """``reason``: why it does not work; empty where it does."""

    works: bool
    reason: str = ""


def probe_uring() -> Probe:
    """Read a page through io_uring, as the pool would, and look at it."""
    try:
        ring = Ring(1)
    except ImportError as exc:
        return Probe(False, f"the package liburing cannot be imported: {exc}")
    except Exception as exc:  # noqa: BLE001  the package wraps errors of the kernel in its own
        return Probe(False, f"the kernel refuses io_uring: {exc}")
    try:
        return _read_one_page(ring)
    except Exception as exc:  # noqa: BLE001
        return Probe(False, f"a read through io_uring failed: {exc}")


def _read_one_page(ring: Ring) -> Probe:
    content = bytes(range(256)) * (PAGE_BYTES // 256)
    buffer = Buffer(PAGE_BYTES)
    descriptor = os.memfd_create("layerstream-probe", os.MFD_CLOEXEC)
    try:
        os.write(descriptor, content)
        ring.read(1, descriptor, buffer.bytes.data, 0)
        ring.submit()
        if not select.select([ring.bell], [], [], _WAIT_SECONDS)[0]:
            return Probe(False, f"a read through io_uring took over {_WAIT_SECONDS:.0f} s")
        ended = ring.ended()
    finally:
        os.close(descriptor)
    ring.close()
    if ended != [(1, len(content))] or buffer.bytes.tobytes() != content:
        return Probe(False, f"a read through io_uring gave other bytes: {ended}")
    return Probe(True)
