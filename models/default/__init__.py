"""The default model: a small CNN trained on CIFAR-10, and a photograph.

benchmarks/training/default_model.py trains it.
"""

from pathlib import Path

#: Holds cifar10.onnx, labels.txt, preprocess.toml and cat.png.
FOLDER = Path(__file__).parent
