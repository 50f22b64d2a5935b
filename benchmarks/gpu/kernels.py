"""The distinct convolutions of a network: ours beside cuDNN's, through PyTorch, float32 without TF32.

Both sides of a convolution take turns; times are of CUDA events, medians.
"""

import contextlib
import importlib.util
import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing
from statistics import median
from typing import Any

from onnx import TensorProto, helper

from models.network.operators.reading import Convolution
from models.packs.pack import Pack
from pipeline.devices.base import Launch
from pipeline.devices.cuda.device import CudaDevice
from pipeline.devices.cuda.lowering import NotCoveredError, convolutions
from pipeline.devices.cuda.operators.convolutions.algorithms import geometry_key
from pipeline.program.choice import choose_pieces
from pipeline.program.program import Program

_ROUNDS = 7
_RUNS = 5


def shapes_of(pack: Pack, device: CudaDevice) -> list[Convolution]:
    """Return the distinct convolutions of a pack for CUDA, layers whole."""
    found: dict[tuple[str, int], Convolution] = {}
    for piece in choose_pieces(Program.as_compiled(pack), None):
        with contextlib.suppress(NotCoveredError):
            for it in convolutions(pack.graphs[piece.graph], device.settings):
                found.setdefault((geometry_key(it), it.filters), it)
    return list(found.values())


def _tensors(it: Convolution) -> dict[str, tuple[int, ...]]:
    """Return the shapes of what a convolution reads and, last, writes."""
    return {"x": it.x.shape, "w": it.weight.shape, "b": (it.filters,), "y": it.y.shape}


def _graph(it: Convolution) -> bytes:
    """Return a convolution as a piece."""
    ports = [
        helper.make_tensor_value_info(name, TensorProto.FLOAT, sizes)
        for name, sizes in _tensors(it).items()
    ]
    windows = it.windows
    node = helper.make_node(
        "Conv", ["x", "w", "b"], ["y"], kernel_shape=windows.kernel, strides=windows.strides,
        pads=[*windows.before, *windows.behind], dilations=windows.dilations, group=it.groups,
    )  # fmt: skip
    graph = helper.make_graph([node], "", ports[:-1], ports[-1:])
    opsets = [helper.make_opsetid("", 17)]
    return bytes(helper.make_model(graph, opset_imports=opsets).SerializeToString())


def measure_kernels(device: CudaDevice, shapes: Sequence[Convolution]) -> Iterator[dict[str, Any]]:
    """Yield a row for each of ``shapes``: microseconds of ours and, with PyTorch, of cuDNN's layouts.

    ``speed``: the better layout's time over ours; None without PyTorch.
    """
    peers = importlib.util.find_spec("torch") is not None
    for shape in shapes:
        with ExitStack() as stack:
            sides = {"ours": _ours(device, shape, stack), **(_cudnn(shape) if peers else {})}
            timers = {side: _torch_timer() for side in sides if side != "ours"}
            timers["ours"] = _ours_timer(device)
            samples: dict[str, list[float]] = {name: [] for name in sides}
            for side, launch in sides.items():
                timers[side](launch)  # cuDNN looks for its algorithm, our code is loaded
            for _ in range(_ROUNDS):
                for side, launch in sides.items():
                    samples[side].append(timers[side](launch))
            seconds = {side: median(values) for side, values in samples.items()}
        best = min((seconds[side] for side in ("nchw", "nhwc") if side in seconds), default=None)
        yield {
            **_row(shape),
            "us": {side: each * 1e6 for side, each in seconds.items()},
            "gflops": 2 * shape.macs / seconds["ours"] / 1e9,
            "speed": None if best is None else best / seconds["ours"],
        }


def _row(it: Convolution) -> dict[str, Any]:
    """Return what a report says of a convolution."""
    windows, (batch, channels, *_) = it.windows.on_a_plane, it.x.shape
    return {
        "batch": batch,
        "channels": channels,
        "height": windows.size[0],
        "width": windows.size[1],
        "filters": it.filters,
        "kernel": windows.kernel,
        "strides": windows.strides,
        "pads": windows.before,
        "dilations": windows.dilations,
        "out_height": windows.result[0],
        "out_width": windows.result[1],
        "groups": it.groups,
    }


def _ours(device: CudaDevice, shape: Convolution, stack: ExitStack) -> Launch:
    arrays = []
    for sizes in _tensors(shape).values():
        memory = stack.enter_context(closing(device.allocate("own", 4 * math.prod(sizes))))
        arrays.append(memory.array(0, "float32", sizes))
    scratch = stack.enter_context(closing(device.allocate("scratch", 32 << 20)))
    return device.load(_graph(shape)).bind(arrays[:3], arrays[3:], scratch)


def _ours_timer(device: CudaDevice) -> Callable[[Launch], float]:
    driver, stream = device.driver, device.kernel_stream

    def seconds(launch: Launch) -> float:
        start, end = driver.create_event(), driver.create_event()
        driver.record(start, stream)
        for _ in range(_RUNS):
            launch()
        driver.record(end, stream)
        driver.synchronize(end)
        spent = driver.elapsed(start, end) / _RUNS
        driver.destroy_event(start)
        driver.destroy_event(end)
        return spent

    return seconds


def _cudnn(shape: Convolution) -> dict[str, Launch]:
    import torch

    torch.backends.cudnn.allow_tf32 = False
    torch.backends.cudnn.benchmark = True
    # PyTorch pads both ends alike; where ours differ, its output is a row and a column larger at most.
    windows = shape.windows
    pads = tuple(map(max, windows.before, windows.behind))
    sizes = list(_tensors(shape).values())
    sides: dict[str, Launch] = {}
    formats = {"nchw": torch.contiguous_format, "nhwc": torch.channels_last}
    for name, memory_format in formats.items():
        x, w, b = (torch.zeros(size, device="cuda") for size in sizes[:3])
        x, w = (tensor.contiguous(memory_format=memory_format) for tensor in (x, w))

        def launch(x: Any = x, w: Any = w, b: Any = b) -> None:
            with torch.inference_mode():
                torch.nn.functional.conv2d(
                    x, w, b, windows.strides, pads, windows.dilations, shape.groups
                )

        sides[name] = launch
    return sides


def _torch_timer() -> Callable[[Launch], float]:
    import torch

    def seconds(launch: Launch) -> float:
        start = torch.cuda.Event(enable_timing=True)
        end = torch.cuda.Event(enable_timing=True)
        start.record()
        for _ in range(_RUNS):
            launch()
        end.record()
        end.synchronize()
        return float(start.elapsed_time(end)) / 1e3 / _RUNS

    return seconds


def summarise(rows: Sequence[dict[str, Any]]) -> dict[str, float]:
    """Return the geometric mean and the least of ``speed``; empty without a peer."""
    speeds = [row["speed"] for row in rows if row["speed"] is not None]
    if not speeds:
        return {}
    mean = math.exp(sum(map(math.log, speeds)) / len(speeds))
    return {"geometric_mean": mean, "least": min(speeds), "convolutions": len(speeds)}
