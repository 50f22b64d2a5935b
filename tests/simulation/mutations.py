"""Faults drawn by a seed from the sources of the service: ``python -m tests.simulation.mutations SEED``.

Half of them are one token: another comparison, operator or constant, or a condition that is negated. Half
are of concurrency: a lock, a wake-up, a re-check, a release or a shield that is missing, or two statements
that are swapped. They are printed as planted/ has them. planted/drawn.json has the first ones that change
what the service does; planted/replaced.json has those before and between that do not, with the reason.
"""

import ast
import itertools
import json
import random
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TypeGuard

from tests.simulation.planting import ROOT

#: Where faults are; as many in one folder as in any other.
AREAS = (
    "server/scheduling",
    "server/requests",
    "server/memory",
    "server/transport",
    "server/repository",
    "pipeline/execution",
    "loader",
)
_COMPARISONS = {"<=": "<", "<": "<=", ">=": ">", ">": ">=", "==": "!=", "!=": "=="}
_WORDS = {" and ": " or ", " or ": " and ", "min(": "max(", "max(": "min(", "True": "False"}
_WORDS |= {"False": "True", " not in ": " in ", " is not None": " is None", " + 1": "", " - 1": ""}
_RELEASES = (".release(", ".give(", ".discard(", ".remove(", ".pop(", ".end(", ".forget(", ".land(")
_WAKES = (".notify", ".set(", ".wake(", ".set_result(", "_go_on(", "_serve(", "_look(", "tell(")
_SHIELDS = ("await run_to_completion(", "await asyncio.shield(")
#: What a run does not do: bytes of sockets and TLS, child processes, the reader in C, pictures, GPUs,
#: partitions, races of plans in idle time, traces, and fakes.
_NAMES = """
__init__ __main__ asgi_client answers_of apart authority certificate client_certificate
compiling compiling_child computing cores disk encryption environment extension fakes
json_answers library limited_process listener masks model_config native newcomers on_disk
opened_pictures perfetto photographs pictures process_memory proxies proxy_protocol
search_apart server sockets streaming survey text_format tuning
"""
_OUTSIDE = frozenset(_NAMES.split())
#: A fault: its kind, line index (from 1), index of lines, and what stands there instead.
Site = tuple[str, int, int, list[str]]


def main() -> None:
    """Print faults of the seed that is the first argument, as many as the second says."""
    seed, count = int(sys.argv[1]), int(sys.argv[2]) if len(sys.argv) > 2 else 40
    print(json.dumps([*drawn(random.Random(seed), count)], indent=1))


def drawn(rng: random.Random, count: int) -> Iterator[dict[str, object]]:
    """Yield faults: of all areas one of a token, then of all areas one of concurrency, and so on."""
    pools = {(area, kind): _pool(rng, area, kind) for area in AREAS for kind in (0, 1)}
    index = 0
    for kind, area in itertools.cycle(itertools.product((0, 1), AREAS)):
        if index == count:
            return
        if pools[area, kind]:
            path, site = pools[area, kind].pop()
            yield _fault(path, site, index)
            index += 1


def _pool(rng: random.Random, area: str, kind: int) -> list[tuple[Path, Site]]:
    sites: list[tuple[Path, Site]] = []
    for path in sorted((ROOT / area).rglob("*.py")):
        if path.stem in _OUTSIDE or path.parent.name in ("native", "partitions"):
            continue
        of_file = [*(_concurrent(path) if kind else _tokens(path))]
        sites += [(path, site) for site in of_file]
    # Kinds in turn, since some have many more sites than others.
    by_kind: dict[str, list[tuple[Path, Site]]] = {}
    for path, site in sites:
        by_kind.setdefault(site[0], []).append((path, site))
    for sites_of_kind in by_kind.values():
        rng.shuffle(sites_of_kind)
    pool: list[tuple[Path, Site]] = []
    while by_kind:
        kinds = [*by_kind]
        rng.shuffle(kinds)
        for name in kinds:
            pool.append(by_kind[name].pop())
            if not by_kind[name]:
                del by_kind[name]
    return pool[::-1]


def _fault(path: Path, site: Site, index: int) -> dict[str, object]:
    """Return ``site`` as planted/ has it, with as many lines before it as make its text the only one."""
    kind, line, count, after = site
    lines = path.read_text(encoding="utf-8").split("\n")
    start = line - 1
    while path.read_text(encoding="utf-8").count("\n".join(lines[start : line - 1 + count])) > 1:
        start -= 1
    module = ".".join(path.relative_to(ROOT).with_suffix("").parts)
    before = lines[start : line - 1 + count]
    return {
        "name": f"{index:02}-{module.rpartition('.')[2]}-{line}",
        "about": kind,
        "changes": [[module, before, [*lines[start : line - 1], *after]]],
    }


def _tokens(path: Path) -> Iterator[Site]:
    text = path.read_text(encoding="utf-8")
    lines = text.split("\n")
    for node in ast.walk(ast.parse(text)):
        if not isinstance(node, ast.If | ast.While | ast.Return | ast.Assign | ast.AugAssign):
            continue
        line = lines[node.lineno - 1]
        code = line.partition("  #")[0]
        if node.col_offset == 0 or '"' in code:
            continue
        for before, after in (*_COMPARISONS.items(), *_WORDS.items()):
            spaced = f" {before} " if before in _COMPARISONS else before
            if code.count(spaced) == 1:
                changed = code.replace(spaced, f" {after} " if before in _COMPARISONS else after)
                yield f"{before.strip()} is {after.strip() or 'gone'}", node.lineno, 1, [changed]
        if isinstance(node, ast.If) and code.strip().startswith("if ") and code.endswith(":"):
            head, _, condition = code.partition("if ")
            negated = f"{head}if not ({condition[:-1]}):"
            yield "a condition is negated", node.lineno, 1, [negated]


def _concurrent(path: Path) -> Iterator[Site]:
    text = path.read_text(encoding="utf-8")
    lines = text.split("\n")
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.With | ast.AsyncWith):
            line = lines[node.lineno - 1]
            if "lock" in line or "_changed" in line or "_deciding" in line or "_landed" in line:
                indent = " " * node.col_offset
                yield "a lock is missing", node.lineno, 1, [f"{indent}if True:"]
        if isinstance(node, ast.While) and "(" not in lines[node.lineno - 1]:
            changed = lines[node.lineno - 1].replace("while ", "if ", 1)
            yield "a re-check is missing", node.lineno, 1, [changed]
        for name in ("body", "orelse", "finalbody"):
            block = getattr(node, name, None)
            if isinstance(block, list) and not isinstance(node, ast.Module | ast.ClassDef):
                yield from _of_block(block, lines)


def _of_block(block: list[ast.stmt], lines: list[str]) -> Iterator[Site]:
    for statement in block:
        first, last = statement.lineno, statement.end_lineno or statement.lineno
        line, indent = lines[first - 1], " " * statement.col_offset
        count = last - first + 1
        if isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Call):
            if any(word in line for word in _WAKES):
                yield "a wake-up is missing", first, count, [f"{indent}pass"]
            elif any(word in line for word in _RELEASES):
                yield "a release is missing", first, count, [f"{indent}pass"]
        for shield in _SHIELDS:
            if shield in line and count == 1 and line.endswith(")"):
                inner = line.partition(shield)[2][:-1]
                yield (
                    "a shield is missing",
                    first,
                    1,
                    [line.partition(shield)[0] + f"await {inner}"],
                )
    for one, other in itertools.pairwise(block):
        simple = (ast.Expr, ast.Assign, ast.AugAssign)
        if isinstance(one, simple) and isinstance(other, simple):
            if isinstance(one, ast.Expr) and isinstance(one.value, ast.Constant):
                continue
            first, middle, last = one.lineno, other.lineno, other.end_lineno or other.lineno
            one_end = one.end_lineno or first
            names = {name.id for name in ast.walk(one) if _is_stored(name)}
            used = {name.id for name in ast.walk(other) if isinstance(name, ast.Name)}
            if middle == one_end + 1 and not names & used:
                swapped = [*lines[middle - 1 : last], *lines[first - 1 : one_end]]
                yield "two statements are swapped", first, last - first + 1, swapped


def _is_stored(node: ast.AST) -> TypeGuard[ast.Name]:
    return isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)


if __name__ == "__main__":
    main()
