"""x * sigmoid(x) as the one operator that it is: no value of its size has to be kept for its factor."""

from dataclasses import replace

from pipeline.export_c.network.network import Network, Node

SWISH = "com.microsoft.QuickGelu"


def with_swish(network: Network) -> Network:
    """Return ``network`` with each product of a value and its sigmoid as one node."""
    readers = network.readers()
    sigmoids = {
        node.output: node
        for node in network.nodes
        if node.operator == "Sigmoid" and readers[node.output] == 1
    }
    gone: set[str] = set()
    nodes: list[Node] = []
    for node in network.nodes:
        source = _swished(node, sigmoids)
        if source is None:
            nodes.append(node)
            continue
        gone.update(set(node.inputs) & sigmoids.keys())
        nodes.append(
            replace(node, operator=SWISH, inputs=(source,), attributes={"alpha": 1.0}, opset=1)
        )
    return replace(network, nodes=tuple(node for node in nodes if node.output not in gone))


def _swished(node: Node, sigmoids: dict[str, Node]) -> str | None:
    """Return what ``node`` multiplies by its own sigmoid, None where it does not."""
    if node.operator != "Mul":
        return None
    for factor, other in (node.inputs, node.inputs[::-1]):
        if factor in sigmoids and sigmoids[factor].inputs[0] == other:
            return other
    return None
