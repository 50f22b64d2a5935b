"""Constant nodes as initializers: one form of weight for the counting, streaming and mapping of them."""

import onnx


def lift_constants(model: onnx.ModelProto) -> None:
    """Make the tensors of Constant nodes of the main graph initializers."""
    taken = {tensor.name for tensor in model.graph.initializer}
    taken.update(value.name for value in model.graph.input)
    kept = []
    for node in model.graph.node:
        tensor = _tensor(node)
        if tensor is None or node.output[0] in taken:
            kept.append(node)
            continue
        lifted = model.graph.initializer.add()
        lifted.CopyFrom(tensor)
        lifted.name = node.output[0]
        tensor.Clear()
    if len(kept) < len(model.graph.node):
        copies = [onnx.NodeProto.FromString(node.SerializeToString()) for node in kept]
        del model.graph.node[:]
        model.graph.node.extend(copies)


def _tensor(node: onnx.NodeProto) -> onnx.TensorProto | None:
    if node.op_type != "Constant" or node.domain != "" or len(node.output) != 1:
        return None
    held = [item.t for item in node.attribute if item.name == "value" and item.HasField("t")]
    return held[0] if held and len(node.attribute) == 1 else None
