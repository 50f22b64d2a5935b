"""The order in which ONNX Runtime writes nodes, without what differs from run to run.

It writes depth first from the ends: of what a node reads, the maker with the largest number goes first.
Nodes have numbers in the order in which they were read or made, and the last that it makes turn blocked
tensors back, in the order of addresses in memory. So nodes are sorted once more in the same way, by numbers
that follow from the source: packs of one source are the same bytes.
"""

import re

import onnx

from models.graphs.nodes import all_graphs, label, made, reads, replace_nodes

#: A node that was read, was made, or turns a blocked tensor back; its number among these; what it makes.
_Key = tuple[int, int, tuple[str, ...]]


def settle_order(written: onnx.ModelProto, given: onnx.ModelProto) -> None:
    """Sort ``written``, which ONNX Runtime made of ``given``; number names of nodes in the same order."""
    nodes = (node for graph in all_graphs(given.graph) for node in graph.node if made(node))
    places = {label(node): place for place, node in enumerate(nodes)}
    graphs = list(all_graphs(written.graph))
    for graph in reversed(graphs):  # nodes, and bodies in them, become copies
        _settle(graph, places)


def _settle(graph: onnx.GraphProto, places: dict[str, int]) -> None:
    keys = [_key(node, places) for node in graph.node]
    turning = sorted((key, place) for place, key in enumerate(keys) if key[0] == 2)
    if len(turning) < 2:
        return  # no address mattered
    names = sorted((graph.node[place].name for _, place in turning), key=_number)
    for (_, place), name in zip(turning, names, strict=True):
        graph.node[place].name = name
    replace_nodes(graph, [graph.node[place] for place in _depth_first(graph, keys)])


def _key(node: onnx.NodeProto, places: dict[str, int]) -> _Key:
    makes = tuple(made(node))
    if node.op_type == "ReorderOutput":
        return 2, _number(node.input[0]), makes
    name = node.name or next(iter(makes), "")
    if name in places:
        return 0, places[name], makes
    return 1, max(map(_number, makes), default=-1), makes


def _number(name: str) -> int:
    """Return the number that ONNX Runtime put behind a name that it took more than once."""
    found = re.search(r"_token_(\d+)$", name)
    return int(found[1]) if found else -1


def _depth_first(graph: onnx.GraphProto, keys: list[_Key]) -> list[int]:
    """Return the places of all nodes, makers first; of several makers, the one with the largest key."""
    makers = {name: place for place, node in enumerate(graph.node) for name in made(node)}
    needs = [{makers[name] for name in reads(node) if name in makers} for node in graph.node]
    ends = set(range(len(needs))).difference(*needs)
    order: list[int] = []
    entered: set[int] = set()
    ahead = sorted(ends, key=keys.__getitem__)
    while ahead:
        place = ahead[-1]
        if place not in entered:
            entered.add(place)
            ahead += sorted(needs[place] - entered, key=keys.__getitem__)
            continue
        ahead.pop()
        order.append(place)
    return list(dict.fromkeys(order))
