"""ONNX Runtime's static quantisation, in sessions of this process: theirs would have other threads."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnxruntime.quantization import QDQQuantizer, QuantType
from onnxruntime.quantization.calibrate import CalibrationDataReader, MinMaxCalibrater

from models.graphs.nodes import label
from models.runtime.sessions import open_session, session_options

_PER_CHANNEL_OPSET = 13
# Ends of the names that the calibrater gives to what it adds to the model.
_EXTREMES = ("ReduceMin", "ReduceMax")


class RangeError(ValueError):
    """A value is NaN or infinite; the message is the name of the first one."""


class _Session:
    """Gives the least and the largest numbers of values, which are to be numbers."""

    def __init__(self, path: str) -> None:
        self._session = open_session(path, session_options(optimise=False))
        self.get_outputs = self._session.get_outputs
        nodes = onnx.load(path, load_external_data=False).graph.node
        self._order = {name: place for place, node in enumerate(nodes) for name in node.output}

    def run(self, names: None, inputs: dict[str, NDArray[Any]]) -> list[NDArray[Any]]:
        found: list[NDArray[Any]] = self._session.run(names, inputs)
        endless = []
        for port, value in zip(self.get_outputs(), found, strict=True):
            name, _, kind = port.name.rpartition("_")
            if kind in _EXTREMES and not np.isfinite(value).all():
                endless.append(name)
        if endless:
            raise RangeError(min(endless, key=lambda name: self._order.get(name, -1)))
        return found


class _Calibrater(MinMaxCalibrater):  # type: ignore[misc]
    def create_inference_session(self) -> None:
        self.infer_session = _Session(str(self.augmented_model_path))


class _Reader(CalibrationDataReader):  # type: ignore[misc]
    """One sample."""

    def __init__(self, inputs: Mapping[str, NDArray[Any]]) -> None:
        self._left = [dict(inputs)]

    def get_next(self) -> dict[str, NDArray[Any]] | None:
        return self._left.pop() if self._left else None


class Ranges:
    """The least and the largest number of each value of the model in ``file``, over what is added.

    ``operators``: whose operands count. ``folder``: for a file that gives these values.
    """

    def __init__(self, file: Path, operators: Sequence[str], folder: Path) -> None:
        self.operators = operators
        augmented = folder / "ranges.onnx"
        self._calibrater = _Calibrater(file, operators, augmented, use_external_data_format=True)
        self._calibrater.augment_graph()
        self._calibrater.create_inference_session()

    def add(self, inputs: Mapping[str, NDArray[np.float32]]) -> None:
        """Run the model once and count what comes up.

        Raises:
            RangeError: a value that counts is no number.
        """
        self._calibrater.collect_data(_Reader(inputs))

    def found(self) -> Any:
        """Return the ranges as ONNX Runtime's quantiser takes them."""
        return self._calibrater.compute_data()


def write_quantised(
    file: Path, ranges: Ranges, result: Path, reduced: bool, floats: Sequence[str] = ()
) -> None:
    """Write the model in ``file`` as ``result``: values of 8 bits between QuantizeLinear and its inverse.

    ``reduced``: weights have 7 bits. ``floats``: labels of nodes that stay as they are. Raises what ONNX
    Runtime's quantiser raises.
    """
    model = onnx.load(file)
    own = next(item for item in model.opset_import if item.domain in ("", "ai.onnx"))
    if own.version < _PER_CHANNEL_OPSET:
        model = onnx.version_converter.convert_version(model, _PER_CHANNEL_OPSET)
    model = onnx.shape_inference.infer_shapes(model)
    for node in model.graph.node:
        node.name = label(node)  # nodes of functions have no name
    quantizer = QDQQuantizer(
        model,
        True,  # a scale for each output channel
        reduced,
        QuantType.QInt8,
        QuantType.QUInt8,
        ranges.found(),
        [],
        list(floats),
        list(ranges.operators),
        {},
    )
    quantizer.quantize_model()
    quantizer.model.save_model_to_file(str(result), True)
