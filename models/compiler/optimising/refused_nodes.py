"""What ONNX Runtime refuses, in words of the source: which node, why, and what to do."""

import re

import onnx

from models.graphs.graph import Graph, all_graphs
from models.network.node import Node

# Domains other than ONNX's own whose operators ONNX Runtime has; which of them, only it knows.
_DOMAINS = re.compile(r"ai\.onnx(\..+)?|com\.ms\..+|com\.microsoft(\..+)?|org\.pytorch\.aten")
_NO_KERNEL = re.compile(
    r"Could not find an implementation for (\w[\w.]*)\((\d+)\) node with name '([^']*)'"
)
_NO_TYPE = re.compile(
    r"Type '(?:tensor\((\w+)\)|([^']+))' of input parameter \((.*?)\) of operator \((\w+)\) "
    r"in node \((.*?)\) is invalid"
)
_WRONG = re.compile(r"Node \((.*?)\) Op \((\w+)\) \[\w+Error\] (.+)", re.DOTALL)
_TOO_NEW = re.compile(r"Opset (\d+) is under development.* is till opset (\d+)")
#: What to do about a file that is wrong.
EXPORT_AGAIN = "the file is wrong there: export it again"
#: Before it operators had other attributes, for which few kernels are left.
_FIRST_COMMON_OPSET = 7


def refusal(graph: Graph, text: str) -> str:
    """Return ``text``, what ONNX Runtime says of ``graph``, with the node that it is about and a hint."""
    if new := _TOO_NEW.search(text):
        return f"operator set {new[1]} is newer than {new[2]}, the newest that it has; export with that"
    for node in (node for inner in all_graphs(graph) for node in inner.nodes):
        if fault := _unknown(node):
            return f"{title(node)}: {fault}; export the model without it"
    if match := _NO_KERNEL.search(text):
        operator, version, name = match.groups()
        old = graph.opsets.get("", _FIRST_COMMON_OPSET) < _FIRST_COMMON_OPSET
        hint = (
            "convert the file to operator set 17 (onnx.version_converter)"
            if old
            else "export it with other types, or another operator set"
        )
        return f"node {name!r} ({operator} {version}): it has no kernel for that; {hint}"
    if match := _NO_TYPE.search(text):
        tensor, other, value, operator, name = match.groups()
        return (
            f"node {name!r} ({operator}): its input {value!r} is {tensor or other}, which it does "
            "not take; export it with another type"
        )
    if match := _WRONG.search(text):
        name, operator, fault = match.groups()
        hint = f"{EXPORT_AGAIN}, or give another --shape"
        return f"node {name!r} ({operator}): {fault.strip().rstrip('.')}; {hint}"
    return text


def title(node: Node) -> str:
    """Return what a message calls a node: by its name, else by what it makes."""
    operator = f"{node.domain}:{node.op_type}" if node.domain else node.op_type
    if node.name:
        return f"node {node.name!r} ({operator})"
    return f"the {operator} that makes {node.label!r}"


def _unknown(node: Node) -> str:
    """Return why no runtime knows the operator of ``node``; empty, if one may."""
    if not node.domain:
        if onnx.defs.has(node.op_type) and _since(node.op_type) <= node.opset:
            return ""
        return f"ONNX has no operator of this name in operator set {node.opset}"
    if _DOMAINS.fullmatch(node.domain):
        return ""
    return "the domain is a custom one, and the file has no function of this name"


def _since(name: str) -> int:
    """Return the first operator set of ONNX that has an operator."""
    versions = [
        schema.since_version
        for schema in onnx.defs.get_all_schemas_with_history()
        if schema.name == name and not schema.domain
    ]
    return min(versions, default=1)
