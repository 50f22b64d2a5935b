"""What a caller sees: names, sizes, functions and errors. The header says all of it, the source does it."""

import math
from dataclasses import dataclass
from typing import Literal

from models.packs.records.ports import Port
from pipeline.export_c.network.network import Network
from pipeline.export_c.writing.kernels import blocks
from pipeline.export_c.writing.names import identifier

Weights = Literal["const", "callback"]
Ports = Literal["caller", "arena"]
Inputs = Literal["memory", "callback"]
C_TYPES = {"float32": "float", "int8": "int8_t", "uint8": "uint8_t", "int32": "int32_t"}


@dataclass(frozen=True)
class Api:
    """``prefix`` begins every name; ``names``: the identifier of each input and output, in order."""

    prefix: str
    network: Network
    weights: Weights
    ports: Ports
    inputs: Inputs
    names: dict[str, str]

    @property
    def reads(self) -> bool:
        """Whether a callback reads the weights."""
        return self.weights == "callback"

    @property
    def asks(self) -> bool:
        """Whether a callback brings the rows of the input."""
        return self.inputs == "callback"

    @property
    def pixel_type(self) -> str:
        """What the callback of pixels writes: floats, or bytes."""
        return "float" if any(port.dtype == "float32" for port in self.network.inputs) else "void"

    @property
    def given(self) -> tuple[Port, ...]:
        """The inputs that lie somewhere as a whole."""
        return () if self.asks else self.network.inputs

    @property
    def run(self) -> str:
        """The declaration of the function that computes."""
        given = [f"{self.prefix}_read read", "void *context"] if self.reads else []
        given += [f"{self.prefix}_pixels pixels", "void *camera"] if self.asks else []
        if self.ports == "caller":
            given += [f"const {_pointer(port, self.names)}" for port in self.given]
            given += [_pointer(port, self.names) for port in self.network.outputs]
        return f"int {self.prefix}_run({', '.join(given) or 'void'})"

    @property
    def pointers(self) -> list[str]:
        """The arguments of it that must not be NULL."""
        named = [*(["read"] if self.reads else []), *(["pixels"] if self.asks else [])]
        if self.ports == "caller":
            named += [self.names[port.name] for port in (*self.given, *self.network.outputs)]
        return named

    @property
    def check(self) -> str:
        """The declaration of the function that reads all weights once."""
        return f"int {self.prefix}_check({self.prefix}_read read, void *context)"

    def accessors(self) -> list[tuple[Port, str]]:
        """Return each port that lies in the arena with the declaration of what returns it."""
        if self.ports == "caller":
            return []
        ports = [(port, "") for port in self.given]
        ports += [(port, "const ") for port in self.network.outputs]
        return [
            (port, f"{const}{C_TYPES[port.dtype]} *{self.prefix}_{self.names[port.name]}(void)")
            for port, const in ports
        ]


def _pointer(port: Port, names: dict[str, str]) -> str:
    return f"{C_TYPES[port.dtype]} *{names[port.name]}"


def api_of(
    network: Network, prefix: str, weights: Weights, ports: Ports, inputs: Inputs = "memory"
) -> Api:
    """Return what a caller sees of ``network``."""
    names: dict[str, str] = {}
    for port in (*network.inputs, *network.outputs):
        names.setdefault(
            port.name, identifier(port.name, {*blocks(), *names.values(), "run", "pixels"})
        )
    return Api(prefix, network, weights, ports, inputs, names)


def elements(port: Port) -> int:
    """Return how many numbers ``port`` has."""
    return math.prod(port.shape)
