"""Run a graph node by node, weights held by the caller: ONNX Runtime sessions of one node each."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
from numpy.typing import NDArray
from onnx import helper

from models.errors import ModelError
from models.runtime.sessions import open_piece

AnyArray = NDArray[Any]


class Evaluator:
    """Runs nodes of one model; nodes that do the same share a session."""

    def __init__(self, model: onnx.ModelProto) -> None:
        self._name = model.graph.name
        self._opsets = list(model.opset_import)
        self._ir_version = model.ir_version
        self._sessions: dict[bytes, ort.InferenceSession] = {}

    def run(self, node: onnx.NodeProto, inputs: Sequence[AnyArray | None]) -> list[AnyArray]:
        """Return the outputs of ``node``, unnamed ones left out; an input is None where it has none.

        Raises:
            ModelError: ONNX Runtime cannot run the node on these inputs.
        """
        feeds = {f"x{i}": value for i, value in enumerate(inputs) if value is not None}
        key = self._serialised(node, feeds)
        try:
            if key not in self._sessions:
                self._sessions[key] = open_piece(key)
            return list(self._sessions[key].run(None, feeds))
        except Exception as exc:  # ONNX Runtime's errors share no base class of their own
            raise ModelError(f"{self._name}: node {node.name!r}: {exc}") from exc

    def _serialised(self, node: onnx.NodeProto, feeds: dict[str, AnyArray]) -> bytes:
        """Return ``node`` as a model: without names, and without shapes, which come with the inputs."""
        alone = onnx.NodeProto()
        alone.CopyFrom(node)
        alone.name = ""
        alone.input[:] = [f"x{i}" if name else "" for i, name in enumerate(node.input)]
        alone.output[:] = [f"y{i}" if name else "" for i, name in enumerate(node.output)]
        ports = [
            helper.make_tensor_value_info(
                name, helper.np_dtype_to_tensor_dtype(np.dtype(value.dtype)), _declared_shape(value)
            )
            for name, value in feeds.items()
        ]
        outputs = [onnx.ValueInfoProto(name=name) for name in alone.output if name]
        graph = helper.make_graph([alone], "", ports, outputs)
        model = helper.make_model(
            graph, opset_imports=self._opsets, ir_version=self._ir_version, producer_name=""
        )
        return bytes(model.SerializeToString(deterministic=True))


def _declared_shape(value: AnyArray) -> list[int | None]:
    """Return an unknown shape, but for sizes and axes: Resize takes none of unknown length."""
    return list(value.shape) if value.dtype == np.int64 else [None] * value.ndim
