"""The locked versions are such as pyproject.toml allows, and it names every package that is imported."""

import ast
import re
import sys
import tomllib
from collections.abc import Iterator
from importlib.metadata import packages_distributions
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from tests.examples import over

_ROOT = Path(__file__).parents[1]
_PRODUCT = ("models", "loader", "pipeline", "papers", "server", "layerstream", "cli")
_CONFIG = tomllib.loads((_ROOT / "pyproject.toml").read_text())
_EXTRAS = _CONFIG["project"]["optional-dependencies"]
_RUN = (*_CONFIG["build-system"]["requires"], *_CONFIG["project"]["dependencies"])
# Of what may not be installed here, or comes with another on purpose.
_PACKAGES = {
    "cupy": "cupy-cuda12x",
    "cupy_backends": "cupy-cuda12x",
    "cupyx": "cupy-cuda12x",
    "pydantic_core": "pydantic",
}
# Statements, and lines of prose that look like them.
_IMPORTS = re.compile(r"^\s*(?:import|from)\s+(\w+)", re.MULTILINE)


@over(
    "needed, files",
    [
        *((each, ["run.txt"]) for each in _RUN),
        *(
            (each, ["run.txt", "dev.txt"])
            for extra in ("dev", "grpc", "otel", "place", "search", "sound", "text")
            for each in _EXTRAS[extra]
        ),
    ],
)
def test_the_locked_version_is_allowed(needed: str, files: list[str]) -> None:
    requirement = Requirement(needed)
    locked = dict(pair for file in files for pair in _locked(file))
    assert locked[canonicalize_name(requirement.name)] in requirement.specifier, "make lock"


def test_what_the_product_imports_is_named() -> None:
    named = {Requirement(each).name for each in _RUN} | {
        Requirement(each).name for extra in _EXTRAS.values() for each in extra
    }
    brought_by = packages_distributions()

    def is_named(name: str) -> bool:
        packages = {canonicalize_name(each) for each in brought_by.get(name, [name])}
        return _PACKAGES.get(name) in named or bool(named & packages)

    assert not {
        name
        for name in _imported({name for name in brought_by if is_named(name)})
        if not is_named(name)
    }


def _locked(file: str) -> Iterator[tuple[str, str]]:
    yield from re.findall(
        r"^([a-z0-9-]+)==([^ ;]+)", (_ROOT / "requirements" / file).read_text(), re.MULTILINE
    )


def _statements(node: ast.AST) -> Iterator[ast.AST]:
    """Yield the statements in ``node``: expressions are most of a file, and import nothing."""
    for each in ast.iter_child_nodes(node):
        if isinstance(each, ast.stmt | ast.excepthandler | ast.match_case):
            yield each
            yield from _statements(each)


def _imported(known: set[str]) -> set[str]:
    """Return the packages, but those that are ``known``, that the product imports anything from."""
    found = set[str]()
    known = {*known, *_PRODUCT, *sys.stdlib_module_names}
    for path in (path for folder in _PRODUCT for path in (_ROOT / folder).rglob("*.py")):
        text = path.read_text()
        if known.issuperset(_IMPORTS.findall(text)):  # a tree takes fifty times as long
            continue
        for node in _statements(ast.parse(text)):
            match node:
                case ast.Import(names):
                    found |= {each.name.partition(".")[0] for each in names}
                case ast.ImportFrom(str(module)):
                    found.add(module.partition(".")[0])
    return found - known
