"""The reference device: NumPy computes, slowly and for its own part.

It shares no kernel with ONNX Runtime and is what tests compare other devices with.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx
from google.protobuf.message import DecodeError
from onnx import helper, numpy_helper

from models.packs.target import host_target
from pipeline.devices.base import DeviceError, Kernel, KernelError, Launch
from pipeline.devices.cpu import HostDevice
from pipeline.devices.device_memory import Memory
from tests.oracle import OPERATORS, SEVERAL_OUTPUTS, VALUES
from tests.oracle.base import Array, Call, Operator


@dataclass(frozen=True)
class _Step:
    """One node: what to call, and the names of its inputs and outputs ("": left out)."""

    label: str
    operator: Operator
    attributes: Mapping[str, Any]
    opset: int
    block: int
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]

    def run(self, values: dict[str, Array]) -> None:
        """Add the outputs to ``values``.

        Raises:
            KernelError: the inputs do not fit the operator.
        """
        inputs = [values[name] if name else None for name in self.inputs]
        call = Call(inputs, self.attributes, self.opset, len(self.outputs), self.block)
        try:
            results = self.operator(call)
        except Exception as exc:
            raise KernelError(f"{self.label}: {exc}") from exc
        if len(results) != len(self.outputs):
            raise KernelError(f"{self.label}: {len(results)} results, {len(self.outputs)} outputs")
        for name, result in zip(self.outputs, results, strict=True):
            values[name] = np.asarray(result)


class _ReferenceKernel(Kernel):
    def __init__(
        self,
        steps: Sequence[_Step],
        constants: Mapping[str, Array],
        inputs: Sequence[str],
        outputs: Sequence[str],
    ) -> None:
        self._steps = steps
        self._constants = constants
        self._inputs = inputs
        self._outputs = outputs

    def bind(
        self, inputs: Sequence[Any], outputs: Sequence[Any], scratch: Memory | None = None
    ) -> Launch:
        sources = dict(zip(self._inputs, inputs, strict=True))
        targets = dict(zip(self._outputs, outputs, strict=True))

        def launch() -> None:
            values = {**self._constants, **sources}
            # Infinities and NaN are results here, as they are in every other kernel.
            with np.errstate(all="ignore"):
                for step in self._steps:
                    step.run(values)
            # A result may be a view of an input, an input the memory of any output: copy all, then
            # write.
            results = {name: values[name].copy() for name in targets}
            for name, target in targets.items():
                _write(name, results[name], target)

        return launch


def _write(name: str, result: Array, target: Array) -> None:
    if (result.shape, result.dtype) != (target.shape, target.dtype):
        raise KernelError(
            f"output {name!r} is {result.dtype}{list(result.shape)}, "
            f"its memory {target.dtype}{list(target.shape)}"
        )
    target[...] = result


class ReferenceDevice(HostDevice):
    """Runs pieces in NumPy, on the thread that launches them.

    ``block``: channels in a block of the blocked layout; None takes this machine's, the one that its
    packs have.
    """

    name = "reference"

    def __init__(self, block: int | None = None) -> None:
        super().__init__()
        self.block = host_target().block if block is None else block

    def make(self, graph: bytes) -> Kernel:
        try:
            model = onnx.load_model_from_string(graph)
        except DecodeError as exc:
            raise DeviceError(f"not an ONNX model ({exc})") from exc
        opsets = {_domain(item.domain): item.version for item in model.opset_import}
        constants = {item.name: numpy_helper.to_array(item) for item in model.graph.initializer}
        inputs = [port.name for port in model.graph.input]
        outputs = [port.name for port in model.graph.output]
        for node in model.graph.node:
            if any(item.HasField("g") or item.graphs for item in node.attribute):
                raise DeviceError(f"{node.op_type}: the reference device has no control flow")
        known = {"", *constants, *inputs}
        steps = []
        for node in model.graph.node:
            step = self._step(node, opsets)
            _check_known(step.label, step.inputs, known)
            known.update(step.outputs)
            steps.append(step)
        _check_known("outputs", outputs, known)
        return _ReferenceKernel(steps, constants, inputs, outputs)

    def _step(self, node: onnx.NodeProto, opsets: Mapping[str, int]) -> _Step:
        domain = _domain(node.domain)
        label = f"{domain}.{node.op_type}" if domain else node.op_type
        operator = OPERATORS.get(domain, {}).get(node.op_type)
        if operator is None or domain not in opsets:
            raise DeviceError(f"{label}: the reference device does not have this operator")
        outputs = tuple(node.output)
        while outputs and not outputs[-1]:
            outputs = outputs[:-1]
        if len(outputs) > 1 and node.op_type not in SEVERAL_OUTPUTS:
            raise DeviceError(f"{label}: the reference device computes only its first output")
        attributes = {item.name: _attribute(item) for item in node.attribute}
        for name, allowed in VALUES.items():
            if name in attributes and attributes[name] not in allowed:
                raise DeviceError(f"{label}: {name} {attributes[name]!r} is not supported")
        return _Step(
            label,
            operator,
            attributes,
            opsets[domain],
            self.block,
            tuple(node.input),
            outputs,
        )


def _domain(name: str) -> str:
    return "" if name == "ai.onnx" else name


def _attribute(item: onnx.AttributeProto) -> Any:
    value = helper.get_attribute_value(item)
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else value


def _check_known(label: str, names: Sequence[str], known: set[str]) -> None:
    for name in names:
        if name not in known:
            raise DeviceError(f"{label}: {name!r} is computed nowhere before")
