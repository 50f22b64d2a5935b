"""The distinct convolutions of a network: ours beside cuDNN's, through PyTorch, float32 without TF32.

Both sides of a convolution take turns; times are of CUDA events, medians.
"""

import importlib.util
import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing
from dataclasses import asdict, dataclass
from statistics import median
from typing import Any

import onnx
from onnx import TensorProto, helper

from models.pack import Pack
from pipeline.architectures import ARCHITECTURES
from pipeline.devices.base import Launch
from pipeline.devices.cuda.device import CudaDevice
from pipeline.planning.make import make_plan

_ROUNDS = 7
_RUNS = 5


@dataclass(frozen=True)
class Shape:
    """A convolution of one image: input, filters, and the attributes that ONNX gives it."""

    channels: int
    height: int
    width: int
    filters: int
    kernel: tuple[int, int]
    strides: tuple[int, int]
    pads: tuple[int, int, int, int]
    group: int

    @property
    def out(self) -> tuple[int, int]:
        top, left, bottom, right = self.pads
        rows = (self.height + top + bottom - self.kernel[0]) // self.strides[0] + 1
        return rows, (self.width + left + right - self.kernel[1]) // self.strides[1] + 1

    @property
    def operations(self) -> int:
        """Multiplications and additions of the direct algorithm."""
        depth = self.channels // self.group * math.prod(self.kernel)
        return 2 * self.filters * depth * math.prod(self.out)

    def graph(self) -> bytes:
        """Return it as a piece: x, w, b in, y out."""
        rows = [
            ("x", (1, self.channels, self.height, self.width)),
            ("w", (self.filters, self.channels // self.group, *self.kernel)),
            ("b", (self.filters,)),
        ]
        ports = [helper.make_tensor_value_info(*_typed(name, shape)) for name, shape in rows]
        result = helper.make_tensor_value_info(*_typed("y", (1, self.filters, *self.out)))
        node = helper.make_node(
            "Conv", ["x", "w", "b"], ["y"], kernel_shape=self.kernel, strides=self.strides,
            pads=self.pads, group=self.group,
        )  # fmt: skip
        graph = helper.make_graph([node], "", ports, [result])
        opsets = [helper.make_opsetid("", 17)]
        return bytes(helper.make_model(graph, opset_imports=opsets).SerializeToString())


def _typed(name: str, shape: Sequence[int]) -> tuple[str, int, Sequence[int]]:
    return name, TensorProto.FLOAT, shape


def shapes_of(pack: Pack) -> list[Shape]:
    """Return the distinct convolutions of a pack for CUDA, layers whole."""
    found: dict[Shape, None] = {}
    for piece in make_plan(pack.manifest, ARCHITECTURES["pre"]).pieces:
        graph = onnx.load_model_from_string(pack.graphs[piece.graph]).graph
        sizes = {
            port.name: tuple(dim.dim_value for dim in port.type.tensor_type.shape.dim)
            for port in graph.input
        }
        for node in graph.node:
            if node.op_type == "Conv" and {node.input[0], node.input[1]} <= set(sizes):
                found.setdefault(_shape(node, sizes[node.input[0]], sizes[node.input[1]]))
    return list(found)


def _shape(node: onnx.NodeProto, x: tuple[int, ...], w: tuple[int, ...]) -> Shape:
    attributes = {item.name: helper.get_attribute_value(item) for item in node.attribute}
    _, channels, height, width = x
    down, across = attributes.get("strides", (1, 1))
    top, left, bottom, right = attributes.get("pads", (0, 0, 0, 0))
    return Shape(
        channels,
        height,
        width,
        filters=w[0],
        kernel=(w[2], w[3]),
        strides=(down, across),
        pads=(top, left, bottom, right),
        group=attributes.get("group", 1),
    )


def measure_kernels(device: CudaDevice, shapes: Sequence[Shape]) -> Iterator[dict[str, Any]]:
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
            **asdict(shape),
            "us": {side: each * 1e6 for side, each in seconds.items()},
            "gflops": shape.operations / seconds["ours"] / 1e9,
            "speed": None if best is None else best / seconds["ours"],
        }


def _ours(device: CudaDevice, shape: Shape, stack: ExitStack) -> Launch:
    sizes = (
        shape.channels * shape.height * shape.width,
        shape.filters * shape.channels // shape.group * math.prod(shape.kernel),
        shape.filters,
        shape.filters * math.prod(shape.out),
    )
    shapes = [
        (1, shape.channels, shape.height, shape.width),
        (shape.filters, shape.channels // shape.group, *shape.kernel),
        (shape.filters,),
        (1, shape.filters, *shape.out),
    ]
    memories = [stack.enter_context(closing(device.allocate("own", 4 * size))) for size in sizes]
    scratch = stack.enter_context(closing(device.allocate("scratch", 32 << 20)))
    arrays = [
        memory.array(0, "float32", each) for memory, each in zip(memories, shapes, strict=True)
    ]
    return device.load(shape.graph()).bind(arrays[:3], arrays[3:], scratch)


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


def _cudnn(shape: Shape) -> dict[str, Launch]:
    import torch

    torch.backends.cudnn.allow_tf32 = False
    torch.backends.cudnn.benchmark = True
    pads = shape.pads[:2]
    assert pads == shape.pads[2:], "uneven padding is another operator in PyTorch"
    sides: dict[str, Launch] = {}
    formats = {"nchw": torch.contiguous_format, "nhwc": torch.channels_last}
    for name, memory_format in formats.items():
        x = torch.zeros(1, shape.channels, shape.height, shape.width, device="cuda")
        w = torch.zeros(shape.filters, shape.channels // shape.group, *shape.kernel, device="cuda")
        x, w = (tensor.contiguous(memory_format=memory_format) for tensor in (x, w))
        b = torch.zeros(shape.filters, device="cuda")

        def launch(x: Any = x, w: Any = w, b: Any = b) -> None:
            with torch.inference_mode():
                torch.nn.functional.conv2d(x, w, b, shape.strides, pads, 1, shape.group)

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
