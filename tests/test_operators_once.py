"""Names of operators, and tables of them, stand in the catalogue and in the backends' tables alone.

A name elsewhere is a member of ``Op``, one at a time; a set of members is a trait that the catalogue lacks.
"""

import ast
import functools
import re
from collections.abc import Mapping
from pathlib import Path

import onnxruntime.capi.onnxruntime_pybind11_state as onnxruntime

from models.network.names import Op

ROOT = Path(__file__).parent.parent
FOLDERS = ("models", "pipeline")
#: Where names of operators are at home: what they mean, what runs them, networks that are written down.
HOMES = (
    "models/network/",
    "models/runtime/kernels.py",
    "models/darknet/",
    "models/zoo/",
)


# A text that begins with a name, or a member.
_MAY_NAME = re.compile(r"""(["'\n])\s*(com\.microsoft|[A-Z]\w+(?=[\s"']))|Op\.""")


def operator_names() -> set[str]:
    """Return what ONNX and ONNX Runtime call their operators, with and without a domain in front."""
    schemas = onnxruntime.get_all_operator_schema()
    return {schema.name for schema in schemas} | {str(op) for op in Op if op}


@functools.cache
def sources() -> Mapping[str, ast.Module]:
    paths = (path for folder in FOLDERS for path in sorted((ROOT / folder).rglob("*.py")))
    texts = {path.relative_to(ROOT).as_posix(): path.read_text("utf-8") for path in paths}
    return {
        name: ast.parse(text)
        for name, text in texts.items()
        if not name.startswith(HOMES) and _MAY_NAME.search(text)
    }


def is_member(node: ast.expr | None) -> bool:
    """Return whether an expression is ``Op.X``, a tuple with one, or such a tuple taken apart."""
    if isinstance(node, ast.Starred):
        return is_member(node.value)
    if isinstance(node, ast.Tuple):
        return any(map(is_member, node.elts))
    return (
        isinstance(node, ast.Attribute)
        and isinstance(node.value, ast.Name)
        and node.value.id == "Op"
    )


def count(tree: ast.Module, names: set[str]) -> tuple[int, int]:
    """Count texts of ``tree`` that name operators, and displays of two or more members of ``Op``."""
    texts = tables = 0
    documents = set[int]()
    for node in ast.walk(tree):
        if isinstance(node, ast.Expr):
            documents.add(id(node.value))  # a docstring, which its statement comes before
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            words = node.value.split() if id(node) not in documents else []
            texts += bool(words) and all(word in names for word in words)
        elif isinstance(node, ast.Tuple | ast.List | ast.Set):
            tables += sum(map(is_member, node.elts)) > 1
        elif isinstance(node, ast.Dict):
            tables += max(sum(map(is_member, side)) for side in (node.keys, node.values)) > 1
    return texts, tables


@functools.cache
def counted() -> Mapping[str, tuple[int, int]]:
    names = operator_names()
    return {name: count(tree, names) for name, tree in sources().items()}


def test_no_file_names_an_operator_by_itself() -> None:
    assert {name: texts for name, (texts, _) in counted().items() if texts} == {}


def test_no_file_has_a_table_of_operators() -> None:
    assert {name: tables for name, (_, tables) in counted().items() if tables} == {}


def test_both_are_counted_where_they_stand() -> None:
    text = '"""Conv."""\nA = ("Conv", "MaxPool")\nB = {Op.Conv, Op.MaxPool}\nC = (Op.Conv,)\n'
    assert count(ast.parse(text), operator_names()) == (2, 1)
