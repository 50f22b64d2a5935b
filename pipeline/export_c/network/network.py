"""A network as the exporter sees it: nodes in the order in which they run, and what is constant."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from numpy.typing import NDArray

from models.network.node import Node
from models.packs.records.ports import Port
from pipeline.export_c.network.scales import Scaled


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
        """Return the network without nodes whose results nobody reads."""
        wanted = {port.name for port in self.outputs}
        kept = []
        for node in reversed(self.nodes):
            if wanted.intersection(node.outputs):
                kept.append(node)
                wanted.update(node.inputs)
        return replace(self, nodes=tuple(kept[::-1]))
