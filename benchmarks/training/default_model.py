"""Train the default model: a small residual CNN on CIFAR-10, exported as fp32 ONNX.

Run ``python -m benchmarks.training.default_model --data cifar10.npz`` with the ``train`` extra installed.
The data file holds JPEG bytes: ``train_jpeg`` (uint8), ``train_offsets``, ``train_labels`` and
the same with ``test_``, and ``classes``. Everything random comes from ``--seed``. The accuracy
printed last is that of the exported ONNX file in ONNX Runtime, over all test images.
"""

import argparse
import io
import itertools
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import torch
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper
from PIL import Image
from torch import nn
from torch.nn import functional as F

from models.default import FOLDER

# Write the trained default model as ONNX: batch norms folded, one node a line of the network.


def fold(conv: nn.Conv2d, norm: nn.BatchNorm2d) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """Return weight and bias of the convolution that equals ``norm(conv(x))`` in inference."""
    assert norm.running_mean is not None and norm.running_var is not None
    factor = norm.weight / torch.sqrt(norm.running_var + norm.eps)
    weight = conv.weight * factor[:, None, None, None]
    bias = norm.bias - norm.running_mean * factor
    return weight.detach().contiguous().numpy(), bias.detach().numpy()


class Writer:
    """Collects nodes and initializers; every method returns the name of the tensor it adds."""

    def __init__(self) -> None:
        self.nodes: list[onnx.NodeProto] = []
        self.initializers: list[onnx.TensorProto] = []

    def node(self, kind: str, inputs: list[str], output: str = "", **attributes: Any) -> str:
        output = output or f"{kind.lower()}{len(self.nodes)}"
        self.nodes.append(helper.make_node(kind, inputs, [output], name=output, **attributes))
        return output

    def constant(self, name: str, value: NDArray[np.float32]) -> str:
        self.initializers.append(numpy_helper.from_array(value, name))
        return name

    def conv_relu(self, x: str, layer: nn.Sequential) -> str:
        conv, norm = layer[0], layer[1]
        assert isinstance(conv, nn.Conv2d) and isinstance(norm, nn.BatchNorm2d)
        weight, bias = fold(conv, norm)
        label = f"conv{len(self.initializers) // 2 + 1}"
        names = [
            self.constant(f"{label}.weight", weight),
            self.constant(f"{label}.bias", bias),
        ]
        stride = int(conv.stride[0])
        y = self.node(
            "Conv", [x, *names], kernel_shape=[3, 3], pads=[1] * 4, strides=[stride, stride]
        )
        return self.node("Relu", [y])


def _export_onnx(model: nn.Sequential, path: Path) -> None:
    """Write ``model`` (a SmallResNet) to ``path``: input "image" [1, 3, 32, 32], output "logits"."""
    writer, x = Writer(), "image"
    for layer in model:
        if isinstance(layer, nn.Sequential):
            x = writer.conv_relu(x, layer)
        elif hasattr(layer, "first"):
            y = writer.conv_relu(writer.conv_relu(x, layer.first), layer.second)
            x = writer.node("Add", [x, y])
    x = writer.node("GlobalMaxPool", [x])
    x = writer.node("Flatten", [x])
    classifier = model[-1]
    assert isinstance(classifier, nn.Linear)
    weight = writer.constant("classifier.weight", classifier.weight.detach().numpy())
    bias = writer.constant("classifier.bias", classifier.bias.detach().numpy())
    writer.node("Gemm", [x, weight, bias], "logits", transB=1)
    graph = helper.make_graph(
        writer.nodes,
        "cifar10",
        [helper.make_tensor_value_info("image", TensorProto.FLOAT, [1, 3, 32, 32])],
        [helper.make_tensor_value_info("logits", TensorProto.FLOAT, [1, 10])],
        writer.initializers,
    )
    proto = helper.make_model(
        graph, opset_imports=[helper.make_opsetid("", 17)], producer_name="layerstream"
    )
    proto.ir_version = 9
    onnx.checker.check_model(proto, full_check=True)
    onnx.save(proto, path)


# The network, its data, and its training.

MEAN = (125.3, 123.0, 113.9)
STD = (63.0, 62.1, 66.7)


class ConvNorm(nn.Sequential):
    """A 3x3 convolution, batch norm and ReLU."""

    def __init__(self, inputs: int, outputs: int, stride: int = 1) -> None:
        super().__init__(
            nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False),
            nn.BatchNorm2d(outputs),
            nn.ReLU(),
        )


class Residual(nn.Module):
    """Two 3x3 convolutions around which the input is carried and added."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.first = ConvNorm(channels, channels)
        self.second = ConvNorm(channels, channels)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.second(self.first(x))


class SmallResNet(nn.Sequential):
    """[N, 3, 32, 32] -> [N, 10] logits; about 480,000 parameters."""

    def __init__(self) -> None:
        super().__init__(
            ConvNorm(3, 32),
            Residual(32),
            ConvNorm(32, 64, stride=2),
            Residual(64),
            ConvNorm(64, 128, stride=2),
            Residual(128),
            nn.AdaptiveMaxPool2d(1),
            nn.Flatten(),
            nn.Linear(128, 10),
        )


def decode(data: np.lib.npyio.NpzFile, part: str) -> tuple[torch.Tensor, torch.Tensor]:
    """Return normalised images [N, 3, 32, 32] float32 and labels [N] int64 of one part."""
    jpeg = data[f"{part}_jpeg"].tobytes()
    offsets = data[f"{part}_offsets"]
    pixels = np.stack(
        [
            np.asarray(Image.open(io.BytesIO(jpeg[start:end])).convert("RGB"))
            for start, end in itertools.pairwise(offsets)
        ]
    )
    images = (pixels.astype(np.float32) - np.asarray(MEAN, np.float32)) / np.asarray(
        STD, np.float32
    )
    labels = torch.from_numpy(data[f"{part}_labels"].astype(np.int64))
    return torch.from_numpy(np.ascontiguousarray(images.transpose(0, 3, 1, 2))), labels


def augmented(
    images: torch.Tensor, labels: torch.Tensor, batch: int
) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """Yield one epoch of shuffled batches, each image flipped and shifted up to 4 px."""
    padded = F.pad(images, (4, 4, 4, 4), mode="reflect")
    order = torch.randperm(len(images))
    grid = torch.arange(32)
    for start in range(0, len(order) - batch + 1, batch):
        index = order[start : start + batch]
        rows = torch.randint(0, 9, (batch, 1)) + grid
        columns = torch.randint(0, 9, (batch, 1)) + grid
        columns = torch.where(torch.rand(batch, 1) < 0.5, columns, columns.flip(1))
        patch = padded[
            index[:, None, None, None],
            torch.arange(3)[None, :, None, None],
            rows[:, None, :, None],
            columns[:, None, None, :],
        ]
        yield patch, labels[index]


def accuracy_of(model: nn.Module, images: torch.Tensor, labels: torch.Tensor) -> float:
    """Return the share of images whose largest logit is their label."""
    model.eval()
    with torch.inference_mode():
        hits = sum(
            int((model(x).argmax(1) == y).sum())
            for x, y in zip(images.split(500), labels.split(500), strict=True)
        )
    return hits / len(labels)


def accuracy_of_onnx(path: Path, images: torch.Tensor, labels: torch.Tensor) -> float:
    """Return the accuracy of the exported file, run as users run it: one image at a time."""
    session = ort.InferenceSession(path, providers=["CPUExecutionProvider"])
    name = session.get_inputs()[0].name
    answers = (session.run(None, {name: x[None].numpy()})[0].argmax() for x in images)
    return float(np.mean([a == y for a, y in zip(answers, labels.numpy(), strict=True)]))


def train(model: nn.Module, data: np.lib.npyio.NpzFile, epochs: int, batch: int) -> None:
    """Train in place: SGD with Nesterov momentum, one learning-rate cycle, label smoothing."""
    images, labels = decode(data, "train")
    test_images, test_labels = decode(data, "test")
    steps = len(images) // batch
    optimiser = torch.optim.SGD(
        model.parameters(), lr=0.2, momentum=0.9, nesterov=True, weight_decay=5e-4
    )
    schedule = torch.optim.lr_scheduler.OneCycleLR(
        optimiser, max_lr=0.2, epochs=epochs, steps_per_epoch=steps, pct_start=0.25
    )
    for epoch in range(1, epochs + 1):
        started, total = time.monotonic(), 0.0
        model.train()
        for x, y in augmented(images, labels, batch):
            with torch.autocast("cpu", torch.bfloat16):
                loss = F.cross_entropy(
                    model(x.contiguous(memory_format=torch.channels_last)), y, label_smoothing=0.1
                )
            optimiser.zero_grad()
            loss.backward()
            optimiser.step()
            schedule.step()
            total += loss.item()
        print(
            f"epoch {epoch:2d} loss {total / steps:.4f} "
            f"test accuracy {accuracy_of(model, test_images, test_labels):.4f} "
            f"({time.monotonic() - started:.0f} s)",
            flush=True,
        )


def main() -> None:
    """Train, export beside this file and print the accuracy of the exported file."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--output", type=Path, default=FOLDER / "cifar10.onnx")
    parser.add_argument("--epochs", type=int, default=28)
    parser.add_argument("--batch", type=int, default=256)
    parser.add_argument("--seed", type=int, default=20)
    options = parser.parse_args()

    torch.manual_seed(options.seed)
    data = np.load(options.data)
    model = SmallResNet().to(memory_format=torch.channels_last)
    parameters = sum(p.numel() for p in model.parameters())
    print(f"torch {torch.__version__}, seed {options.seed}, {parameters} parameters", flush=True)
    train(model, data, options.epochs, options.batch)
    _export_onnx(model, options.output)
    images, labels = decode(data, "test")
    accuracy = accuracy_of_onnx(options.output, images, labels)
    print(f"exported ONNX, {len(labels)} test images: accuracy {accuracy:.4f}")


if __name__ == "__main__":
    main()
