"""A network as an ONNX model without weights, which says what it came from and how it is used.

Values are [1, channels, height, width]; behind connected and softmax layers [1, n].
"""

from collections.abc import Sequence
from typing import Any

import onnx

from models.darknet.cfg import format_cfg
from models.darknet.graph import DarknetGraph, DarknetValue, LayerGraph, make_model
from models.darknet.layers import IMAGE, DarknetNetwork
from models.darknet.network import source_sizes
from models.darknet.vector_layers import HeadOperation, YoloOperation
from models.detection.recipe import Detection
from models.graphs import metadata
from models.records import plain, read_record

#: The cfg as text (models/darknet/cfg.py), with the resolution of the import.
CFG = "layerstream.darknet.cfg"
#: Header (models/darknet/weights.py) of the .weights file, when there was one.
HEADER = "layerstream.darknet.header"


_COLORS = {1: "GRAY", 3: "RGB"}


def skeleton(network: DarknetNetwork, name: str, labels: Sequence[str] = ()) -> onnx.ModelProto:
    """Return the model of ``network`` with all weights declared (models/graphs/onnx_writer.py).

    Its input is "image" [1, channels, height, width]; its outputs are called "output", or
    "yolo_LAYER" and "region_LAYER" if there are several. ``labels``: one a class.
    """
    image = DarknetValue("image", network.shape(IMAGE))
    graph = DarknetGraph()
    values = {IMAGE: image}
    names = _output_names(network)
    for layer in network.layers:
        part = LayerGraph(graph, layer.index)
        value = layer.operation.value(part, layer, [values[index] for index in layer.inputs])
        if layer.index in names and not isinstance(layer.operation, HeadOperation):
            value = part.flat(value) if value.shape[1:] == (1, 1) else value
        values[layer.index] = part.finish(value, names.get(layer.index))
    model = make_model(graph, name, image, [values[index] for index in network.outputs])
    metadata.write_metadata(model, _metadata(network, labels))
    return model


def _output_names(network: DarknetNetwork) -> dict[int, str]:
    if len(network.outputs) == 1:
        return {network.outputs[0]: "output"}
    return {index: f"{network.layers[index].kind}_{index}" for index in network.outputs}


def _metadata(network: DarknetNetwork, labels: Sequence[str]) -> dict[str, Any]:
    named = ((network.layers[i].operation, name) for i, name in _output_names(network).items())
    heads = [
        operation.head(name) for operation, name in named if isinstance(operation, HeadOperation)
    ]
    entries: dict[str, Any] = {
        metadata.SIZES: plain(source_sizes(network)),
        CFG: format_cfg(network.sections),
    }
    if network.channels in _COLORS:
        entries[metadata.PREPROCESS] = {
            "size": [network.width, network.height],
            "resize": "letterbox" if heads else "crop",
            "filter": "darknet",
            "color": _COLORS[network.channels],
            "scale": 1 / 255,
        }
    if heads:
        last = network.layers[network.outputs[-1]].operation
        nms = {"nms": last.nms, "beta": last.beta} if isinstance(last, YoloOperation) else {}
        detection = read_record(Detection, {"heads": plain(heads), "labels": list(labels), **nms})
        entries[metadata.DETECTION] = plain(detection)
    if labels:
        entries[metadata.LABELS] = list(labels)
    return entries
