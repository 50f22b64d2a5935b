"""The default model: a small CNN trained on CIFAR-10, with its script, log and a photograph."""

from pathlib import Path

#: Holds cifar10.onnx, labels.txt, preprocess.toml and cat.png.
FOLDER = Path(__file__).parent
