"""A cfg and weights made up for it, imported through a weights file, and how answers are compared."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime as ort
from numpy.typing import NDArray

from models.darknet.cfg import read_cfg
from models.darknet.importer import import_network
from models.darknet.layers import DarknetNetwork
from models.darknet.network import build_network
from models.darknet.skeleton import skeleton
from models.darknet.weights import Header, write_weights
from models.initial import initialise
from tests.models.darknet.cfgs import at_resolution, cfg_text
from tests.models.darknet.oracle import evaluate, parse

Arrays = dict[str, NDArray[np.float32]]
Draw = Callable[[DarknetNetwork], Arrays]

#: Largest difference from the oracle, as a part of the output's largest magnitude.
TOLERANCE = 1e-4


def calibrated_weights(network: DarknetNetwork) -> Arrays:
    """Return weights with which activations neither grow nor vanish through hundreds of layers."""
    return initialise(skeleton(network, "calibrated"))


def seeded_weights(network: DarknetNetwork, seed: int = 0) -> Arrays:
    """Return weights none of which is neutral: a swapped or forgotten array changes the answer."""
    rng = np.random.default_rng(seed)
    drawn: Arrays = {}
    for layer in network.layers:
        for array in layer.arrays:
            if array.name.endswith((".scales", ".variance")):
                values = rng.uniform(0.5, 1.5, array.shape)
            elif layer.kind == "shortcut":
                values = rng.uniform(-0.7, 1.5, array.shape)
            elif array.name.endswith(".weights"):
                fan_in = max(1, int(np.prod(array.shape[1:])))
                values = rng.standard_normal(array.shape) * (2 / fan_in) ** 0.5
            else:
                values = rng.standard_normal(array.shape) * 0.3
            drawn[array.name] = values.astype(np.float32)
    return drawn


@dataclass(frozen=True)
class Imported:
    """The files of one import, what went in, and the oracle's answer (outputs flat)."""

    network: DarknetNetwork
    onnx: Path
    weights: Path
    image: NDArray[np.float32]
    expected: list[NDArray[np.float64]]

    def error(self, outputs: Sequence[NDArray[Any]]) -> float:
        """Return the largest difference of ``outputs``, a part of each one's largest magnitude."""
        assert [x.size for x in outputs] == [x.size for x in self.expected]
        assert all(np.isfinite(x).all() for x in outputs)
        return max(
            float(np.abs(x.reshape(-1) - y).max() / max(np.abs(y).max(), 1e-30))
            for x, y in zip(outputs, self.expected, strict=True)
        )


def import_text(
    text: str,
    folder: Path,
    draw: Draw = seeded_weights,
    header: Header | None = None,
    resolution: int | None = None,
) -> Imported:
    """Import the network of ``text`` with weights that ``draw`` makes, and ask the oracle."""
    cfg, weights, model = (folder / f"network.{ending}" for ending in ("cfg", "weights", "onnx"))
    cfg.write_text(text)
    network = build_network(read_cfg(cfg), str(cfg), resolution)
    write_weights(weights, network, header or Header(), draw(network))
    import_network(cfg, weights, model, resolution)
    image = np.random.default_rng(1).random(network.shape(-1), np.float32)
    seen = cfg_text(at_resolution(parse(text), resolution)) if resolution else text
    answer = evaluate(seen, weights.read_bytes(), image.astype(np.float64))
    return Imported(network, model, weights, image[None], [x.reshape(-1) for x in answer])


def answer_of_onnxruntime(imported: Imported) -> list[NDArray[Any]]:
    session = ort.InferenceSession(imported.onnx, providers=["CPUExecutionProvider"])
    answer: list[NDArray[Any]] = session.run(None, {session.get_inputs()[0].name: imported.image})
    return answer
