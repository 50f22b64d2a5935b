"""A network as an ONNX model without weights, which says what it came from and how it is used.

Values are [1, channels, height, width]; behind connected and softmax layers [1, n].
"""

from collections.abc import Sequence
from typing import Any

import onnx

from models.darknet import layer_nodes
from models.darknet.cfg import format_cfg
from models.darknet.graph import DarknetGraph, DarknetValue, LayerGraph, make_model
from models.darknet.layer_records import (
    IMAGE,
    AvgPoolParameters,
    ConnectedParameters,
    ConvolutionParameters,
    CropParameters,
    DarknetLayer,
    DarknetNetwork,
    DepthMaxPoolParameters,
    IdentityParameters,
    MaxPoolParameters,
    ProductParameters,
    RegionParameters,
    ReorgParameters,
    RouteParameters,
    ShortcutParameters,
    SoftmaxParameters,
    UpsampleParameters,
    YoloParameters,
)
from models.darknet.network import source_sizes
from models.detection.recipe import Detection, DetectionHead
from models.graphs import metadata

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
        value = _emit(part, layer, [values[index] for index in layer.inputs])
        if layer.index in names and not isinstance(
            layer.parameters, YoloParameters | RegionParameters
        ):
            value = part.flat(value) if value.shape[1:] == (1, 1) else value
        values[layer.index] = part.finish(value, names.get(layer.index))
    model = make_model(graph, name, image, [values[index] for index in network.outputs])
    metadata.write_metadata(model, _metadata(network, labels))
    return model


def _output_names(network: DarknetNetwork) -> dict[int, str]:
    if len(network.outputs) == 1:
        return {network.outputs[0]: "output"}
    return {index: f"{network.layers[index].kind}_{index}" for index in network.outputs}


def _emit(graph: LayerGraph, layer: DarknetLayer, inputs: list[DarknetValue]) -> DarknetValue:
    """Add the nodes of ``layer``; return its value."""
    x = inputs[0]
    match layer.parameters:
        case IdentityParameters():
            return x
        case RouteParameters() as p:
            return layer_nodes.route(graph, p, inputs)
        case ConnectedParameters() as p:
            name = layer_nodes.connected(graph, layer, p, x)
        case SoftmaxParameters() as p:
            name = layer_nodes.softmax(graph, p, x)
        case ShortcutParameters() as p:
            name = layer_nodes.shortcut(graph, layer, p, inputs)
        case ProductParameters() as p:
            name = layer_nodes.product(graph, p, inputs)
        case _:
            name = _emit_spatial(graph, layer, graph.spatial(x))
    return DarknetValue(
        name, layer.shape, isinstance(layer.parameters, ConnectedParameters | SoftmaxParameters)
    )


def _emit_spatial(graph: LayerGraph, layer: DarknetLayer, x: DarknetValue) -> str:
    match layer.parameters:
        case ConvolutionParameters() as p:
            name = layer_nodes.convolution(graph, layer, p, x)
        case MaxPoolParameters() as p:
            name = layer_nodes.maxpool(graph, p, x)
        case DepthMaxPoolParameters() as p:
            name = layer_nodes.depth_maxpool(graph, p, x)
        case AvgPoolParameters():
            name = layer_nodes.avgpool(graph, x)
        case UpsampleParameters() as p:
            name = layer_nodes.upsample(graph, p, x)
        case ReorgParameters() as p:
            name = layer_nodes.reorg(graph, layer, p, x)
        case CropParameters() as p:
            name = layer_nodes.crop(graph, layer, p, x)
        case YoloParameters() as p:
            name = layer_nodes.yolo(graph, p, x)
        case RegionParameters() as p:
            name = layer_nodes.region(graph, p, x)
        case _:
            raise AssertionError(f"no nodes for {layer.kind}")
    return name


def _metadata(network: DarknetNetwork, labels: Sequence[str]) -> dict[str, Any]:
    heads = [_head(network, index, name) for index, name in _output_names(network).items()]
    detector = isinstance(
        network.layers[network.outputs[0]].parameters, YoloParameters | RegionParameters
    )
    entries: dict[str, Any] = {
        metadata.SIZES: source_sizes(network).model_dump(),
        CFG: format_cfg(network.sections),
    }
    if network.channels in _COLORS:
        entries[metadata.PREPROCESS] = {
            "size": [network.width, network.height],
            "resize": "letterbox" if detector else "crop",
            "filter": "darknet",
            "color": _COLORS[network.channels],
            "scale": 1 / 255,
        }
    if detector:
        last = network.layers[network.outputs[-1]].parameters
        nms = {"nms": last.nms, "beta": last.beta} if isinstance(last, YoloParameters) else {}
        detection = Detection.model_validate(
            {"heads": [head for head in heads if head], "labels": tuple(labels), **nms}
        )
        entries[metadata.DETECTION] = detection.model_dump(mode="json")
    if labels:
        entries[metadata.LABELS] = list(labels)
    return entries


def _head(network: DarknetNetwork, index: int, output: str) -> DetectionHead | None:
    match network.layers[index].parameters:
        case YoloParameters() as p:
            return DetectionHead(
                output=output,
                kind="yolo",
                anchors=p.anchors,
                classes=p.classes,
                new_coords=p.new_coords,
                scale_x_y=p.scale_x_y,
            )
        case RegionParameters() as p:
            return DetectionHead(
                output=output,
                kind="region",
                anchors=p.anchors,
                classes=p.classes,
                softmax=p.softmax,
            )
        case _:
            return None
