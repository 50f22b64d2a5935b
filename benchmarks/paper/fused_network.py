"""The network of seed 002's experiments: the first 16 layers of YOLOv2 at 608 pixels, as a pack.

``python -m benchmarks.paper.fused_network FOLDER`` compiles it, with random weights, and prints the pack:
``layerstream tiles`` takes it.
"""

import sys
from pathlib import Path

from models.compiler import CompileOptions, compile_onnx
from models.darknet.layers import DarknetNetwork
from models.darknet.network import build_network
from models.darknet.skeleton import skeleton
from models.graphs.onnx_writer import write_onnx
from models.initial import initialise_small
from models.progress import silent
from models.zoo.darknet.detectors import yolov2

NAME, LAYERS, RESOLUTION = "yolov2-16", 16, 608
_SMALL = 128


def fused_network(resolution: int = RESOLUTION) -> DarknetNetwork:
    """Return the layers, as Darknet has them; ``[net]`` is the first section."""
    return build_network(yolov2()[: LAYERS + 1], NAME, resolution)


def fused_pack(folder: Path) -> Path:
    """Compile the network, with random weights, into ``folder``; return its pack."""
    folder.mkdir(parents=True, exist_ok=True)
    model = skeleton(fused_network(), NAME)
    weights = initialise_small(model, skeleton(fused_network(_SMALL), NAME), 0, None, silent)
    source = folder / f"{NAME}.onnx"
    write_onnx(model, weights, source)
    return compile_onnx(source, folder / NAME, CompileOptions())


if __name__ == "__main__":
    print(fused_pack(Path(sys.argv[1])))
