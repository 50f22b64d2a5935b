"""What pieces allocate on the device that they are compiled for."""

from collections.abc import Callable

from models.target import Target


def device_measure(target: Target) -> Callable[[bytes], int | None] | None:
    """Return what tells the scratch of a serialised piece on ``target``, bytes; None of a CPU.

    It tells None of a piece that no kernel of the device covers, and which runs on the CPU there, too.
    """
    return None if target.capability is None else _cuda_scratch


def _cuda_scratch(graph: bytes) -> int | None:
    # onnx: not for the service
    from pipeline.devices.cuda.lowering import NotCoveredError, Settings, lower

    try:
        return lower(graph, Settings()).inner_bytes
    except NotCoveredError:
        return None
