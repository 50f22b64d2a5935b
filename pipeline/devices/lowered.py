"""What pieces become on the device that they are compiled for, without that device."""

from collections.abc import Callable
from dataclasses import dataclass

from models.packs.target import Target

# Devices with more multiprocessors split sums further, which takes scratch: from a Jetson to a data centre.
_MULTIPROCESSORS = (8, 16, 32, 64, 132, 192)


@dataclass(frozen=True)
class Kernels:
    """The launches of a piece by name; ``reason``: why it runs on the CPU instead, else empty."""

    names: tuple[str, ...]
    reason: str = ""


def device_measure(target: Target) -> Callable[[bytes, bool], int | None] | None:
    """Return what tells the scratch of a serialised piece on ``target``, bytes; None of a CPU.

    It tells None of a piece that no kernel of the device covers, and which runs on the CPU there, too.
    """
    return None if target.capability is None else cuda_scratch


def cuda_kernels(graph: bytes) -> Kernels:
    """Return what a serialised piece becomes on a CUDA device as small as a Jetson's."""
    # onnx: not for the service
    from pipeline.devices.cuda.lowering import ConvolutionSettings, NotCoveredError, describe

    try:
        return Kernels(tuple(describe(graph, ConvolutionSettings(_MULTIPROCESSORS[0]))))
    except NotCoveredError as exc:
        return Kernels((), str(exc))


def cuda_scratch(graph: bytes, on_rows: bool) -> int | None:
    """Return a bound on the scratch of a serialised piece on any CUDA device; None: it runs on the CPU.

    ``on_rows``: by the algorithms that row operators take, whose own graphs need no scratch.
    """
    from pipeline.devices.cuda.lowering import ConvolutionSettings, NotCoveredError, is_sized, lower

    if not is_sized(graph):
        return 0  # a row operator
    try:
        each = (ConvolutionSettings(count, scratch=not on_rows) for count in _MULTIPROCESSORS)
        return max(lower(graph, settings).inner_bytes for settings in each)
    except NotCoveredError:
        return None
