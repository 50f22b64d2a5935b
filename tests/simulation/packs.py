"""Packs of a simulated service's models, and an answer of each; written with real threads and clocks."""

from pathlib import Path

import numpy as np

import layerstream
from models.compiler import compile_onnx
from tests.simulation.files import VARIANTS
from tests.simulation.models import write_models


def write(folder: Path) -> None:
    """Write the models of each variant into ``folder`` / VARIANT, as packs and answers.

    A model's answer, NAME.npz, has an input "x" and the output "y" with all weights in memory.
    """
    for seed, variant in enumerate(VARIANTS):
        packs = folder / variant
        packs.mkdir(parents=True)
        for model in write_models(packs, seed):
            compile_onnx(model, packs / model.stem)
            model.unlink()
            with layerstream.open(packs / model.stem) as preloaded:
                (shape,) = (port.shape for port in preloaded.inputs)
                x = np.random.default_rng(7).standard_normal(shape).astype(np.float32)
                (y,) = preloaded({"x": x}).values()
            np.savez(packs / f"{model.stem}.npz", x=x, y=y)
