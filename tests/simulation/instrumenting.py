"""Sources of the project as a simulation imports them: with switches between lines, and a planted fault.

Modules whose code runs on several threads call ``between_lines`` before each statement of their functions,
or another thread could go on only where the code itself takes a lock or waits.
"""

import ast
import importlib.abc
import importlib.machinery
import importlib.util
import sys
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from types import CodeType, ModuleType

from tests.simulation.planting import Planted, sources
from tests.simulation.simulator import between_lines
from tests.simulation.states import STATES, reach

_NAME, _REACH = "between_lines_of_simulation", "reach_in_simulation"
#: Modules, and packages by a dot at the end, that run on several threads.
_THREADED = (
    "loader.",
    "pipeline.budget.budget",
    "pipeline.execution.",
    "server.memory.",
    "server.repository.",
    "server.requests.waiting",
    "server.scheduling.",
)
_BLOCKS = ("body", "orelse", "finalbody")


class Finder(importlib.abc.MetaPathFinder):
    """Finds modules of ``packages``, and loads them with the faults ``planted``."""

    def __init__(self, packages: Iterable[str], planted: Sequence[Planted] = ()) -> None:
        self._packages = frozenset(packages)
        self._sources = sources(planted)

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        """Return where a module of the project is, with a loader of ours; None for any other."""
        if fullname.partition(".")[0] not in self._packages:
            return None
        spec = importlib.machinery.PathFinder.find_spec(fullname, path)
        if spec is not None and isinstance(spec.loader, importlib.machinery.SourceFileLoader):
            source = self._sources.get(fullname)
            spec.loader = _Loader(fullname, spec.loader.path, source)
        return spec


class _Loader(importlib.machinery.SourceFileLoader):
    def __init__(self, name: str, path: str, source: str | None) -> None:
        super().__init__(name, path)
        self._source = source

    def get_code(self, fullname: str) -> CodeType | None:
        """Return the code of a module as a run has it."""
        is_threaded = fullname.startswith(_THREADED)
        states = {state[2:]: state[0] for state in STATES if state[1] == fullname}
        if self._source is None and not (is_threaded or states):
            return super().get_code(fullname)
        text = self._source or Path(self.path).read_text(encoding="utf-8")
        tree = ast.parse(text, self.path)
        if is_threaded or states:
            calls = _Calls(text, states, with_lines=is_threaded)
            tree = ast.fix_missing_locations(calls.visit(tree))
            if unreached := [name for key, name in states.items() if calls.counts[key] != 1]:
                raise ValueError(f"{fullname}: no statement, or several, of {unreached}")
        code: CodeType = compile(tree, self.path, "exec", dont_inherit=True)
        return code

    def exec_module(self, module: ModuleType) -> None:
        """Run the module, which finds what it calls."""
        setattr(module, _NAME, between_lines)
        setattr(module, _REACH, reach)
        super().exec_module(module)


class _Calls(ast.NodeTransformer):
    """Puts a call before each statement of functions, if asked, and before those of ``states``."""

    def __init__(
        self, text: str, states: Mapping[tuple[str, str], str], *, with_lines: bool
    ) -> None:
        self._lines = text.splitlines()
        self._states, self._with_lines = states, with_lines
        self._function = ""
        #: Of each state how many statements it has.
        self.counts: Counter[tuple[str, str]] = Counter()

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.AST:
        """Change a function."""
        return self._changed(node)

    def visit_AsyncFunctionDef(self, node: ast.AsyncFunctionDef) -> ast.AST:
        """As above."""
        return self._changed(node)

    def _changed(self, node: ast.FunctionDef | ast.AsyncFunctionDef) -> ast.AST:
        self.generic_visit(node)
        self._function = node.name
        node.body = self._with_calls(node.body, is_first=True)
        return node

    def _with_calls(self, body: list[ast.stmt], *, is_first: bool = False) -> list[ast.stmt]:
        changed: list[ast.stmt] = []
        for index, statement in enumerate(body):
            is_text = isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant)
            if isinstance(statement, ast.Global | ast.Nonlocal) or (is_text and not index):
                changed.append(statement)
                continue
            if self._with_lines and not (is_first and index == 0):
                changed.append(_call(_NAME, statement))
            changed += self._reaching(statement)
            changed.append(statement)
            self._change_blocks(statement)
        return changed

    def _reaching(self, statement: ast.stmt) -> list[ast.stmt]:
        line = self._lines[statement.lineno - 1][statement.col_offset :]
        for key, state in self._states.items():
            function, beginning = key
            if function == self._function and line.startswith(beginning):
                self.counts[key] += 1
                return [_call(_REACH, statement, state)]
        return []

    def _change_blocks(self, statement: ast.stmt) -> None:
        if isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            return
        for name in _BLOCKS:
            if block := getattr(statement, name, None):
                setattr(statement, name, self._with_calls(block))
        for clause in (*getattr(statement, "handlers", ()), *getattr(statement, "cases", ())):
            clause.body = self._with_calls(clause.body)


def _call(name: str, statement: ast.stmt, *arguments: str) -> ast.stmt:
    constants: list[ast.expr] = [ast.Constant(argument) for argument in arguments]
    call = ast.Call(ast.Name(name, ast.Load()), constants, [])
    return ast.copy_location(ast.Expr(call), statement)


def install(finder: Finder) -> None:
    """Have modules be imported by ``finder`` from now on."""
    sys.meta_path.insert(0, finder)
