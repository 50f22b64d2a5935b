"""Whether models can share activations on a device, and where those lie."""

from contextlib import closing, nullcontext

from pipeline.devices.base import Device
from pipeline.devices.device_memory import Space
from server.memory.sharing import Activations

_PAGE_BYTES = 4096


def shared_space(
    device: Device, capacity_bytes: int, asked: Activations
) -> tuple[Space | None, str]:
    """Return space for activations that models share, or None and why each has its own; "" if as asked."""
    if asked == "own":
        return None, ""
    try:
        space = device.reserve(capacity_bytes)
    except OSError as exc:
        return None, f"models have activations of their own: no addresses to share: {exc}"
    if space is None and asked == "shared":
        return None, "models have activations of their own: this device cannot share them"
    return space, ""


def possible(
    device: Device, asked: Activations, capacity_bytes: int | None = None
) -> tuple[Activations, str]:
    """Return ``asked`` as far as ``device`` can, as a service decides, and why it cannot.

    ``capacity_bytes``: of the budget; None: there is none yet.
    """
    space, why = shared_space(device, capacity_bytes or _PAGE_BYTES, asked)
    with nullcontext() if space is None else closing(space):
        return ("own" if space is None else asked), why
