"""Packs of a simulated service's models, and an answer of each; written with real threads and clocks."""

from pathlib import Path

import numpy as np

import layerstream
from models.compiler import compile_onnx
from tests.simulation.models import write_models


def write(folder: Path) -> None:
    """Write the models' files into ``folder``, and packs and answers into ``folder`` / "repository".

    A model's answer, NAME.npz, has an input "x" and the output "y" with all weights in memory.
    """
    for model in write_models(folder):
        pack = folder / "repository" / model.stem
        compile_onnx(model, pack)
        with layerstream.open(pack) as preloaded:
            (shape,) = (port.shape for port in preloaded.inputs)
            x = np.random.default_rng(7).standard_normal(shape).astype(np.float32)
            (y,) = preloaded({"x": x}).values()
        np.savez(folder / f"{model.stem}.npz", x=x, y=y)
