"""Names of operators, and tables of them, stand in the catalogue and in the backends' tables alone.

A name elsewhere is a member of ``Op``, one at a time; a set of members is a trait that the catalogue lacks.
"""

import ast
import functools
import re
from collections import Counter
from collections.abc import Mapping
from pathlib import Path

import onnxruntime.capi.onnxruntime_pybind11_state as onnxruntime

from models.network.names import Op

ROOT = Path(__file__).parent.parent
ROOMS = ("models", "pipeline")
#: Where names of operators are at home: what they mean, what runs them, networks that are written down.
HOMES = (
    "models/network/",
    "models/runtime/kernels.py",
    "models/darknet/",
    "models/zoo/",
)
#: Names in files that do not ask the catalogue yet, and tables of members: these counts only shrink.
NAMES_LEFT: dict[str, int] = {}
TABLES_LEFT: dict[str, int] = {}


# A text that begins with a name, or a member.
_MAY_NAME = re.compile(r"""(["'\n])\s*(com\.microsoft|[A-Z]\w+(?=[\s"']))|Op\.""")


def operator_names() -> set[str]:
    """Return what ONNX and ONNX Runtime call their operators, with and without a domain in front."""
    schemas = onnxruntime.get_all_operator_schema()
    return {schema.name for schema in schemas} | {str(op) for op in Op if op}


@functools.cache
def sources() -> Mapping[str, ast.Module]:
    paths = (path for room in ROOMS for path in sorted((ROOT / room).rglob("*.py")))
    texts = {path.relative_to(ROOT).as_posix(): path.read_text("utf-8") for path in paths}
    return {
        name: ast.parse(text)
        for name, text in texts.items()
        if not name.startswith(HOMES) and _MAY_NAME.search(text)
    }


def docstrings(tree: ast.Module) -> set[int]:
    """Return the ids of the constants that only document."""
    return {
        id(node.value)
        for node in ast.walk(tree)
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
    }


def names_in(tree: ast.Module, names: set[str]) -> int:
    """Count the operators that texts of ``tree`` name, one or several of them a text."""
    passed = docstrings(tree)
    texts = (
        node.value
        for node in ast.walk(tree)
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in passed
    )
    return sum(all(word in names for word in text.split()) and bool(text.split()) for text in texts)


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


def tables_in(tree: ast.Module) -> int:
    """Count the displays of ``tree`` that hold two or more members of ``Op``."""
    count = 0
    for node in ast.walk(tree):
        if isinstance(node, ast.Tuple | ast.List | ast.Set):
            members = sum(map(is_member, node.elts))
        elif isinstance(node, ast.Dict):
            members = max(sum(map(is_member, node.keys)), sum(map(is_member, node.values)))
        else:
            continue
        count += members > 1
    return count


def test_no_file_names_an_operator_by_itself() -> None:
    names = operator_names()
    left = Counter({name: names_in(tree, names) for name, tree in sources().items()})
    assert dict(+left) == NAMES_LEFT


def test_no_file_has_a_table_of_operators() -> None:
    left = Counter({name: tables_in(tree) for name, tree in sources().items()})
    assert dict(+left) == TABLES_LEFT


def test_both_are_seen_where_they_stand() -> None:
    tree = ast.parse(
        '"""Conv."""\nA = ("Conv", "MaxPool")\nB = {Op.Conv, Op.MaxPool}\nC = (Op.Conv,)\n'
    )
    assert (names_in(tree, operator_names()), tables_in(tree)) == (2, 1)
