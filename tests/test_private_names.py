"""What the product uses of its dependencies that they do not promise to keep: a table, and nothing else.

docs/explanation/architecture/dependencies.md says why each is used, pyproject.toml has an upper bound for
the package that owns it. A name that went fails here by its name, before what needs it fails elsewhere.
"""

import ast
import inspect
import re
import sys
import textwrap
import tomllib
from collections.abc import Iterator
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from tests.examples import over

_ROOT = Path(__file__).parents[1]
_PRODUCT = ("models", "loader", "pipeline", "papers", "server", "layerstream", "cli")
# protobuf promises that what it generated runs with the next major version, too.
_GENERATED = {
    f"server/grpc/messages/{name}_pb2.py" for name in ("health", "inference", "reflection")
}
# Modules that no documentation names: everything in them counts as private, not underscores alone.
_UNDOCUMENTED = re.compile(
    r"aiofiles\.threadpool|google\.protobuf\.internal|onnxruntime\.(capi|quantization\.calibrate)"
    r"|uvicorn\.(?!run\b)[a-z]"
)
# What classes of these modules have that documentation names.
_DOCUMENTED = {
    "onnxruntime.quantization.calibrate.CalibrationDataReader": {"get_next"},
    "uvicorn.server.Server": {"config", "run", "serve", "should_exit"},
}
#: Where a file uses such a name, or has a class that may inherit one: trees take fifty times as long.
_SUSPECT = re.compile(
    r"""
    ^[ ]*class\ \w+\((?!(ABC|Exception|IntEnum|NamedTuple|Protocol|ValueError)\)) |
    \b(aiofiles|google|onnxruntime|uvicorn)\b  # a base, or a module above
    | (?<!\bself)(?<!\bcls)\._[a-z] | attr\([^)]*["']_  # an attribute
    | \bimport\ .*\b_[a-z] | ^[ ]+_\w+,?$ | \b(from|import)\ [\w.]*\b_[a-z]  # a name that is imported
    """,
    re.MULTILINE | re.VERBOSE,
)
# Of named tuples.
_PUBLIC = {"_asdict", "_fields", "_make", "_replace"}


class Used(NamedTuple):
    """Attributes of ``owner``, a class or module, that ``file`` uses; without any: the class itself."""

    owner: str
    names: str
    file: str


USED = (
    Used(
        "uvicorn.server.ServerState",
        "connections default_headers tasks",
        "server/transport/connection.py",
    ),
    Used("uvicorn.server.ServerState", "connections", "server/transport/newcomers.py"),
    Used(
        "uvicorn.server.Server",
        "capture_signals server_state shutdown started startup",
        "server/transport/server.py",
    ),
    Used("onnxruntime.IOBinding", "_iobinding", "pipeline/devices/cpu.py"),
    Used("onnxruntime.InferenceSession", "_sess", "pipeline/devices/cpu.py"),
    Used(
        "onnxruntime.capi.onnxruntime_pybind11_state.InferenceSession",
        "run_with_iobinding",
        "pipeline/devices/cpu.py",
    ),
    Used(
        "onnxruntime.quantization.MinMaxCalibrater",
        "augmented_model_path create_inference_session infer_session",
        "models/compiler/quantising.py",
    ),
    Used("pymoo.core.problem.Problem", "_evaluate", "papers/applications/reduction.py"),
    Used("pymoo.core.mutation.Mutation", "_do", "papers/applications/reduction.py"),
    Used("tokenizers.models.BPE", "_resize_cache", "models/text/tokenizer.py"),
    Used("logging", "_srcfile", "server/operation/logs.py"),
)


@pytest.mark.parametrize(
    ("owner", "name", "file"),
    [
        pytest.param(used.owner, name, used.file, id=f"{used.owner}.{name}")
        for used in USED
        for name in used.names.split()
    ],
)
def test_a_private_name_is_there_and_used(owner: str, name: str, file: str) -> None:
    assert name in _names(owner), f"{owner}.{name} has gone; {file} uses it"
    assert re.search(rf"\b{name}\b", (_ROOT / file).read_text()), f"{file} does not use it any more"


@over("owner", sorted({used.owner for used in USED}))
def test_a_private_name_is_explained_and_its_owner_bounded(owner: str) -> None:
    package, name = owner.partition(".")[0], owner.rpartition(".")[2]
    assert f"`{name}`" in (_ROOT / "docs/explanation/architecture/dependencies.md").read_text()
    if package not in sys.stdlib_module_names:
        bounds = [each for each in _requirements() if re.match(rf"{package}\b", each)]
        assert bounds
        assert all("<" in each for each in bounds)


@over("folder", _PRODUCT)
def test_the_product_uses_no_other_private_name(folder: str) -> None:
    listed = {(used.file, name) for used in USED for name in used.names.split()}
    listed |= {(used.file, used.owner.rpartition(".")[2]) for used in USED}
    found = set()
    for path in sorted((_ROOT / folder).rglob("*.py")):
        file = path.relative_to(_ROOT).as_posix()
        text = path.read_text()
        if file not in _GENERATED and _SUSPECT.search(text):
            found |= {(file, name) for name in _used(ast.parse(text))}
    assert not found - listed


@over(
    "text, found",
    [
        ("from uvicorn._types import ASGI3Application", {"ASGI3Application"}),
        ("import uvicorn.server", {"server"}),
        ("from concurrent.futures import _base", {"_base"}),
        ("import asyncio\nasyncio.tasks._all_tasks", {"_all_tasks"}),
        ("def f(loop): return loop._ready", {"_ready"}),
        ("def f(loop): return getattr(loop, '_ready')", {"_ready"}),
        ("from asyncio import Lock\nclass A(Lock):\n  def f(self): self._waiters", {"_waiters"}),
        (
            "import asyncio\nclass A(asyncio.Lock):\n  def f(self): super()._wake_up_first()",
            {"_wake_up_first"},
        ),
        (
            "import uvicorn\nclass A(uvicorn.Server):\n  async def main_loop(self): ...",
            {"main_loop"},
        ),
        ("class A:\n  def __init__(self): self._own = 1\n  def f(self, other): other._own", set()),
        ("import uvicorn\nuvicorn.protocols.utils.is_ssl", {"protocols", "utils", "is_ssl"}),
        ("import uvicorn\nclass A(uvicorn.Server):\n  async def serve(self): ...", set()),
        (
            "from uvicorn import Config\nfrom enum import Enum\nclass A(Enum):\n  _ignore_ = []",
            set(),
        ),
    ],
)
def test_private_names_are_found(text: str, found: set[str]) -> None:
    assert set(_used(ast.parse(text))) == found
    assert _SUSPECT.search(text) or not found


def _used(tree: ast.Module) -> Iterator[str]:
    """Yield the last name of each thing that ``tree`` uses and no documentation promises."""
    nodes = list(ast.walk(tree))
    foreign = {}
    for node in nodes:
        for local, name, whole in _imported(node):
            foreign[local] = name
            if _is_private(whole) or _UNDOCUMENTED.match(whole):
                yield whole.rpartition(".")[2]
    own = set(_defined(nodes)) | _PUBLIC
    for node in nodes:
        match node:
            case ast.Attribute(ast.Name("self" | "cls")):
                pass  # looked at below, where its class has a foreign base
            case ast.Attribute(value, name):
                whole = f"{_dotted(value, foreign)}.{name}"
                if (_is_private(name) and name not in own) or _UNDOCUMENTED.match(whole):
                    yield name
            case ast.Call(
                ast.Name("getattr" | "hasattr" | "setattr"), [_, ast.Constant(str(name)), *_]
            ):
                if _is_private(name) and name not in own:
                    yield name
            case ast.ClassDef():
                for base in node.bases:
                    yield from _inherited(node, _dotted(base, foreign))


def _imported(node: ast.AST) -> Iterator[tuple[str, str, str]]:
    """Yield what ``node`` calls each thing that it imports, what that is, and all that it names."""
    match node:
        case ast.Import():
            for each in node.names:
                top = each.name.partition(".")[0]
                yield each.asname or top, each.name if each.asname else top, each.name
        case ast.ImportFrom(module=str(module)) if module.partition(".")[0] not in _PRODUCT:
            for each in node.names:
                whole = f"{module}.{each.name}"
                yield each.asname or each.name, whole, whole


def _defined(nodes: list[ast.AST]) -> Iterator[str]:
    for node in nodes:
        match node:
            case ast.FunctionDef(name) | ast.AsyncFunctionDef(name) | ast.ClassDef(name):
                yield name
            case ast.Name(name, ast.Store()) | ast.Attribute(ast.Name("self"), name, ast.Store()):
                yield name


def _dotted(node: ast.expr, foreign: dict[str, str]) -> str:
    """Return what ``node`` is called from outside; empty where it was not imported."""
    match node:
        case ast.Name(name):
            return foreign.get(name, "")
        case ast.Attribute(value, name) if owner := _dotted(value, foreign):
            return f"{owner}.{name}"
        case ast.Subscript(value):
            return _dotted(value, foreign)
    return ""


def _inherited(node: ast.ClassDef, base: str) -> Iterator[str]:
    """Yield what the class ``node`` overrides or uses of ``base`` and no documentation has."""
    try:
        found = _found(base)
    except (AttributeError, ImportError, ValueError):  # not installed, or not foreign
        return
    if not inspect.isclass(found):
        return
    used = set()
    for each in ast.walk(node):
        match each:
            case (
                ast.FunctionDef(name)
                | ast.AsyncFunctionDef(name)
                | ast.Attribute(ast.Name("self" | "cls") | ast.Call(ast.Name("super")), name)
            ):
                if not name.endswith("__"):
                    used.add(name)
    if _UNDOCUMENTED.match(found.__module__):
        used -= _DOCUMENTED.get(f"{found.__module__}.{found.__qualname__}", set())
    else:
        used = {*filter(_is_private, used)}
    if used:  # to list what a class has takes as long as to read its module
        yield from used & _names(base)


def _is_private(name: str) -> bool:
    """Return whether a part of ``name`` says so; enums and ctypes document names like _fields_."""
    return any(part.startswith("_") and not part.endswith("_") for part in name.split("."))


def _found(name: str) -> Any:
    """Return the module or class that is called ``name``."""
    module, _, attribute = name.rpartition(".")
    try:
        return import_module(name)
    except ModuleNotFoundError:
        return getattr(import_module(module), attribute)


@cache
def _names(owner: str) -> frozenset[str]:
    """Return what ``owner`` has: what Python lists, and of a class what its methods give ``self``."""
    found = _found(owner)
    names = set(dir(found))
    for each in inspect.getmro(found) if inspect.isclass(found) else ():
        try:
            tree = ast.parse(textwrap.dedent(inspect.getsource(each)))
        except (OSError, TypeError):  # it is written in C
            continue
        for node in ast.walk(tree):
            match node:
                case ast.Attribute(ast.Name("self"), name, ast.Store()):
                    names.add(name)
    return frozenset(names)


def _requirements() -> list[str]:
    project = tomllib.loads((_ROOT / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"].values()
    return [*project["dependencies"], *(each for extra in extras for each in extra)]
