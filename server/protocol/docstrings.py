"""Docstrings of routes and schemas, which /openapi.json shows, where the interpreter leaves them out (-OO).

They are read from the source when the document is requested, and not before: a server holds none of them.
"""

import ast
import inspect
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from types import ModuleType

_DEFINITIONS = (ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
_WITHOUT_DOCSTRINGS = 2  # sys.flags.optimize of -OO


def text_of(definition: object) -> str:
    """Return the docstring of a class or function, "" if it has none."""
    return inspect.cleandoc(definition.__doc__ or "")


def restore_docstrings(modules: Iterable[str]) -> None:
    """Give classes and functions of ``modules``, which are imported, the docstrings that they lack."""
    if sys.flags.optimize < _WITHOUT_DOCSTRINGS:
        return
    for name in {*modules}:
        restore_from_source(sys.modules[name])


def restore_from_source(module: ModuleType) -> None:
    """Give the classes and functions that ``module`` defines the docstrings of its source."""
    source = Path(inspect.getfile(module)).read_text(encoding="utf-8")
    for name, text in _docstrings(source):
        definition = vars(module).get(name)
        if definition is not None and definition.__doc__ is None:
            definition.__doc__ = text


def _docstrings(source: str) -> Iterator[tuple[str, str]]:
    for node in ast.parse(source).body:
        if isinstance(node, _DEFINITIONS) and (text := ast.get_docstring(node, clean=False)):
            yield node.name, text
