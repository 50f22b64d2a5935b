"""The network of a pack as the exporter sees it: nodes in order, constants, numbers as bytes."""

from collections import Counter
from collections.abc import Mapping, Set
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from google.protobuf.message import DecodeError
from numpy.typing import NDArray
from onnx import helper, numpy_helper

from models.errors import ModelError
from models.graphs.file import reference
from models.graphs.nodes import node_of, reads
from models.network.names import NCHWC, PLAIN_DOMAINS, Op
from models.network.node import Node, UnsuitedError
from models.packs.manifest import checksum
from models.packs.pack import Pack
from models.packs.records.ports import Port
from models.packs.records.spans import Store


class ExportError(ModelError):
    """The pack cannot become C, or the files cannot be written; the message names node and reason."""


# How bytes stand for numbers.
#
# Numbers are unsigned bytes everywhere in C: of a signed one the highest bit is flipped, and so is that
# of its zero point. Sums are 32-bit integers; results are rounded to the nearest, half to even, and
# saturate.

FLIPS = {"uint8": 0, "int8": 128}


@dataclass(frozen=True)
class Scaled:
    """How bytes stand for numbers: ``scale`` times (byte - ``zero``); ``flip``: the bit of signed ones."""

    dtype: str
    scale: NDArray[np.float32]
    zero: int

    @property
    def flip(self) -> int:
        return FLIPS[self.dtype]

    @property
    def plain_zero(self) -> int:
        """The zero point as it is written."""
        return self.zero - self.flip

    @property
    def one(self) -> float:
        """The scale, where there is one for all."""
        return float(self.scale.reshape(-1)[0])


def scaled(scale: NDArray[Any], zeros: NDArray[Any]) -> Scaled:
    """Return what scales and zero points of bytes say."""
    zero, dtype = zeros.reshape(-1)[0], zeros.dtype.name
    if (zeros != zero).any():
        raise UnsuitedError("zero points that differ from channel to channel")
    return Scaled(dtype, scale, int(zero) + FLIPS[dtype])


# A network as the exporter sees it: nodes in the order in which they run, and what is constant.


@dataclass(frozen=True)
class Network:
    """``constants`` by name; of ports what a caller gives and gets.

    ``quantised``: ports that are bytes, and floats in the pack.
    """

    name: str
    inputs: tuple[Port, ...]
    outputs: tuple[Port, ...]
    nodes: tuple[Node, ...]
    constants: Mapping[str, NDArray[Any]]
    quantised: Mapping[str, Scaled] = field(default_factory=dict)

    def readers(self) -> Counter[str]:
        """Return how often each value is read, by nodes and by the caller."""
        read = Counter(name for node in self.nodes for name in node.inputs if name)
        read.update(port.name for port in self.outputs)
        return read

    def live(self) -> "Network":
        """Return the network without nodes whose results are not read."""
        wanted = {port.name for port in self.outputs}
        kept = []
        for node in reversed(self.nodes):
            if wanted.intersection(node.outputs):
                kept.append(node)
                wanted.update(node.inputs)
        return replace(self, nodes=tuple(kept[::-1]))


# From the files of a pack to its network: model.onnx, whose weights lie in weights.bin.

_DOMAINS = (*PLAIN_DOMAINS, NCHWC)


def read_network(pack: Pack) -> Network:
    """Return the network in ``pack`` as its compiler left it, blocked layout and all.

    Raises:
        ExportError: model.onnx or weights.bin is not what the manifest says, a node has a graph inside, or
            weights are stored otherwise than they are computed with.
    """
    if pack.manifest.expands:
        raise ExportError(f"{pack.folder}: {_not_as_computed(pack.manifest.store)}")
    model = _model(pack)
    constants = dict(_constants(pack, model))
    nodes = model.graph.node
    opsets = {item.domain: item.version for item in model.opset_import}
    manifest = pack.manifest
    read = {name for node in nodes for name in reads(node)}
    read.update(port.name for port in manifest.outputs)
    return Network(
        manifest.name,
        tuple(map(_given, manifest.inputs)),
        manifest.outputs,
        tuple(_node(pack, node, opsets, read) for node in nodes),
        constants,
    )


def _given(port: Port) -> Port:
    """Return ``port``, which a caller must give here."""
    return Port(name=port.name, dtype=port.dtype, shape=port.shape, value=port.value)


def _not_as_computed(store: Store) -> str:
    if store == "fp32":
        return "some weights are 8-bit integers in the source and computed as floats; no C expands them"
    return (
        f"its weights are stored as {store}, so the pack has no whole graph; export one that was compiled "
        "without --store: C has weights as they are computed with"
    )


def _model(pack: Pack) -> onnx.ModelProto:
    path = pack.model_path
    data = path.read_bytes()
    if checksum(data) != pack.manifest.files[path.name].checksum:
        raise ExportError(f"{path}: damaged: its checksum is not the manifest's")
    try:
        return onnx.ModelProto.FromString(data)
    except DecodeError as exc:
        raise ExportError(f"{path}: not an ONNX model ({exc})") from exc


def _node(pack: Pack, node: onnx.NodeProto, opsets: Mapping[str, int], read: Set[str]) -> Node:
    """Return ``node`` without outputs at its end that are not read; those of a Split are its parts."""
    read_node = node_of(node, opsets)
    inside = [
        name for name, value in read_node.attributes.items() if isinstance(value, onnx.GraphProto)
    ]
    if inside or node.domain not in _DOMAINS:
        why = f"a graph inside ({inside[0]})" if inside else f"the domain {node.domain}"
        raise ExportError(f"{pack.folder}: node {read_node.label!r} ({node.op_type}): {why}")
    if read_node.operator == Op.Split:
        return read_node
    count = max(at for at, name in enumerate(read_node.outputs, 1) if name in read)
    return replace(read_node, outputs=read_node.outputs[:count])


def _constants(pack: Pack, model: onnx.ModelProto) -> dict[str, NDArray[Any]]:
    path = pack.weights_path
    _check_weights(pack, path)
    arrays = {}
    for tensor in model.graph.initializer:
        place = reference(tensor)
        if place is None:
            arrays[tensor.name] = np.asarray(numpy_helper.to_array(tensor))
            continue
        dtype = helper.tensor_dtype_to_np_dtype(tensor.data_type)
        count = place.length // dtype.itemsize
        if place.offset + place.length > path.stat().st_size or count != np.prod(tensor.dims):
            raise ExportError(f"{pack.model_path}: tensor {tensor.name!r}: not in weights.bin")
        data = np.memmap(path, dtype, "r", place.offset, (count,))
        arrays[tensor.name] = data.reshape(tuple(tensor.dims))
    return arrays


def _check_weights(pack: Pack, path: Path) -> None:
    with path.open("rb") as file:
        for number, span in enumerate(pack.manifest.spans):
            file.seek(span.file_offset)
            if checksum(file.read(span.file_length)) != span.checksum:
                raise ExportError(
                    f"{path}: span {number}: damaged: its checksum is not the manifest's"
                )
