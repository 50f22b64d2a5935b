"""What the pages say can be followed: links lead somewhere, code is there, blocks are for a shell."""

import ast
import re
import runpy
import shlex
import subprocess
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from types import SimpleNamespace

import pytest

import layerstream
from benchmarks.planning import budgets
from cli.commands import COMMANDS, loaded
from cli.reference import PAGES as OPTION_PAGES
from cli.reference import markdown
from models.network import reference as operators_page
from server import faults
from server.faults import Outcome
from tests.check_readme import environment, script
from tests.documents import (
    ROOT,
    Block,
    Page,
    anchor,
    broken_links,
    lost_paths,
    navigation,
    pages,
    read,
)
from tests.examples import over

# Commands that pages name, and whether they are there: ours, modules, targets of make, files. Nothing is
# run: options of ``layerstream`` are those of its parsers, those of ``python -m MODULE`` are read from
# calls of ``add_argument`` in its source, and in what that imports of ours.

_OURS = ("benchmarks", "cli", "server", "tests", "tools", "deploy")
_END = re.compile(r"[;&|()<>]+")


def simple(text: str) -> Iterator[list[str]]:
    """Yield the simple commands of a text for a shell, as words."""
    for line in text.replace("\\\n", " ").splitlines():
        words = shlex.shlex(line, posix=True, punctuation_chars=True)
        words.whitespace_split = True
        command: list[str] = []
        for word in words:
            if _END.fullmatch(word):
                yield command
                command = []
            else:
                command.append(word)
        yield command


def named(page: Page) -> Iterator[tuple[int, list[str]]]:
    """Yield (line, words) of the commands of a page: in blocks, and in code within its text.

    There a command may be a form: ``[--option VALUE]``, ``A|B``, ``PACK...``, or its first words.
    """
    for block in page.blocks:
        for words in simple(block.commands):
            yield block.line, words
    for line, text in page.prose:
        for span in re.findall(r"`([^`]+)`", text):
            form = re.sub(r"[\[\]\\]", "", span)
            if re.match(r"(layerstream|python3?|make) ", form) and form.count('"') % 2 == 0:
                for words in simple(form):
                    yield line, words


def wrong(words: list[str]) -> str | None:
    """Return what of a command is not there, if it is one of ours."""
    match words:
        case ["layerstream", *given]:
            return _wrong_option(given)
        case ["python" | "python3", "-m", module, *given] if module.split(".")[0] in _OURS:
            known = _options(module)
            if known is None:
                return f"no module {module}"
            lost = [word for word in _option_names(given) if word not in known]
            return f"{module} has no {lost[0]}" if lost else None
        case ["make", target, *_] if not re.search(rf"^{target}:", _makefile(), re.MULTILINE):
            return f"no target {target}"
    lost = [
        word
        for word in words
        if "/" in word and word.split("/")[0] in _OURS and not (ROOT / word).exists()
    ]
    return f"no {lost[0]}" if lost else None


def _wrong_option(given: list[str]) -> str | None:
    name, *rest = given
    if name.startswith("--"):
        return None if name in ("--version", "--help") else f"no {name}"
    if name not in COMMANDS:
        return f"no command {name}"
    command = loaded(name)
    while rest and getattr(command, "commands", None):
        if rest[0] not in command.commands:
            return f"no command {name} {rest[0]}"
        command = command.commands[rest.pop(0)]
    known = {name for item in command.params for name in (*item.opts, *item.secondary_opts)}
    lost = [word for word in _option_names(rest) if word not in known | {"--help"}]
    return f"{name} has no {lost[0]}" if lost else None


def _option_names(words: list[str]) -> list[str]:
    return [word.partition("=")[0] for word in words if re.match(r"--?[a-z]", word)]


@cache
def _options(module: str) -> frozenset[str] | None:
    """Return the options of a module and of what it imports of ours; None: there is no such module."""
    path = _source(module)
    if path is None:
        return None
    found = set(_added(path))
    for node in ast.walk(ast.parse(path.read_text("utf-8"))):
        if isinstance(node, ast.ImportFrom) and node.module and (source := _source(node.module)):
            found |= _added(source)
    return frozenset(found)


def _source(module: str) -> Path | None:
    path = ROOT.joinpath(*module.split("."))
    paths = (path.with_suffix(".py"), path / "__main__.py")
    return next((each for each in paths if each.exists()), None)


@cache
def _added(path: Path) -> frozenset[str]:
    text = path.read_text("utf-8")
    return frozenset(
        argument.value
        for node in ast.walk(ast.parse(text if "add_argument" in text else ""))
        if isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and node.func.attr == "add_argument"
        for argument in node.args
        if isinstance(argument, ast.Constant) and isinstance(argument.value, str)
    )


@cache
def _makefile() -> str:
    return (ROOT / "Makefile").read_text("utf-8")


PAGES = pages()
REFERENCE = ROOT / "docs" / "reference"
MOST_WORDS = 1500
MAX_LINES = 250


def test_every_link_leads_somewhere() -> None:
    assert broken_links(PAGES) == []


@over(
    "heading, name",
    [
        ("What one client can take", "what-one-client-can-take"),
        ("How `auto` plans", "how-auto-plans"),
        ("The search of Section V-D", "the-search-of-section-v-d"),
        ("Python, wheels & more", "python-wheels--more"),
        ("See [that](page.md)", "see-that"),
    ],
)
def test_anchors_are_those_of_github(heading: str, name: str) -> None:
    assert anchor(heading) == name


def test_broken_links_are_found(tmp_path: Path) -> None:
    (tmp_path / "there.md").write_text("# One\n\n# One\n", "utf-8")
    text = "[a](there.md#one-1) [b](there.md#two) [c](gone.md) [d](https://x.org/y) ![e](e.svg) [f](#h)\n"
    text += "`[g](code.md)`\n```\n[h](block.md)\n```\n## H\n[i](../out.md)\n"
    (tmp_path / "page.md").write_text(text, "utf-8")
    found = broken_links(
        {name: read((tmp_path / name).read_text("utf-8")) for name in ("page.md", "there.md")},
        tmp_path,
    )
    lost = [("page.md:1", name) for name in ("there.md#two", "gone.md", "e.svg")]
    assert found == [*(f"{line}: {name}" for line, name in lost), "page.md:7: ../out.md"]


def test_every_page_is_in_the_navigation_once() -> None:
    assert sorted(navigation()) == sorted(name for name in PAGES if name.startswith("docs/"))


def test_pages_are_short() -> None:
    texts = {name: (ROOT / name).read_text("utf-8") for name in PAGES}
    assert {
        name
        for name, text in texts.items()
        if len(re.findall(r"\S*\w\S*", text)) > MOST_WORDS
        or (name.startswith("docs/") and text.count("\n") > MAX_LINES)
    } == set()


@pytest.fixture(scope="module")
def files() -> list[str]:
    """Return all files of this clone."""
    listed = ["git", "ls-files", "--cached", "--others", "--exclude-standard"]
    found = subprocess.run(listed, cwd=ROOT, capture_output=True, text=True, check=False).stdout
    if not found:
        pytest.skip("no clone of git")
    return [name for name in found.split() if (ROOT / name).exists()]


def test_pages_are_where_code_says(files: list[str]) -> None:
    kinds = {".py", ".c", ".h", ".cu", ".cuh", ".sh", ".toml", ".yml", ".yaml"}
    lost = {
        f"{name}: {page}"
        for name in files
        if Path(name).suffix in kinds
        for page in re.findall(r"\bdocs/[\w/-]+\.(?:md|toml)", (ROOT / name).read_text("utf-8"))
        if not (ROOT / page).exists()
    }
    assert lost == set()


def test_code_is_where_pages_say(files: list[str]) -> None:
    code = {name: page for name, page in PAGES.items() if name != "CHANGELOG.md"}
    assert lost_paths(code, files) == []


def test_code_is_where_pictures_say(files: list[str]) -> None:
    paths_of = {
        name: re.findall(r"[>\s(]((?:\w+/)*\w+\.py)\b", (ROOT / name).read_text("utf-8"))
        for name in files
        if name.startswith("docs/images/") and name.endswith(".svg")
    }
    pictures = {
        name: read("".join(f"`{path}`\n" for path in paths)) for name, paths in paths_of.items()
    }
    assert any(paths_of.values())
    assert lost_paths(pictures, files) == []


def test_lost_code_is_found() -> None:
    text = "`a/b.py` `b.py` `c.py` `a/x/` `a/x/d.toml` `a/gone/` `run.py` `preprocess.toml`\n"
    text += "```\n`e.py`\n```\n"
    found = lost_paths({"page.md": read(text)}, ["a/b.py", "a/x/d.toml"])
    assert found == ["page.md:1: c.py", "page.md:1: a/gone/", "page.md:1: run.py"]


def test_commands_on_the_pages_are_there() -> None:
    """Commands and options of ours, modules and theirs, targets of make, files: in blocks and in text."""
    lost = [
        f"{name}:{line}: {problem}"
        for name, page in PAGES.items()
        if name != "CHANGELOG.md"
        for line, words in named(page)
        if (problem := wrong(words)) is not None
    ]
    assert lost == []


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("layerstream plan PACK --budget 1MiB --explain", None),
        ("layerstream plan PACK --budgets 1MiB", "plan has no --budgets"),
        ("layerstream paln PACK", "no command paln"),
        ("layerstream key add keys camera-1 --role admin", None),
        ("layerstream key give keys camera-1", "no command key give"),
        ("python -m benchmarks.reads --rounds 3", None),
        ("python -m benchmarks.reads --runs 3", "benchmarks.reads has no --runs"),
        ("python -m benchmarks.writes", "no module benchmarks.writes"),
        ("make docs", None),
        ("make dogs", "no target dogs"),
        ("sh tools/bootstrap.sh run", None),
        ("sh tools/strap.sh run", "no tools/strap.sh"),
    ],
)
def test_commands_that_are_not_there_are_found(text: str, problem: str | None) -> None:
    assert [wrong(words) for words in simple(text)] == [problem]


def test_commands_are_found_in_blocks_and_in_text() -> None:
    text = "`layerstream plan [--json] A|B` `layerstream` `ls a`\n"
    text += "```console\n$ one \\\n  two  # three\nfour\n$ (five; six > seven) && eight\n```\n"
    text += "```text\nnine ten\n```\n"
    found = [words for _, words in named(read(text)) if words]
    assert found == [
        *(["one", "two"], ["five"], ["six"], ["seven"], ["eight"]),
        *(["layerstream", "plan", "--json", "A"], ["B"]),
    ]


def test_options_are_those_of_the_commands() -> None:
    """The pages of options are what ``python -m cli.reference`` writes."""
    for name in OPTION_PAGES:
        assert (REFERENCE / name).read_text("utf-8") == markdown(name)


def test_operators_are_those_of_the_catalogue() -> None:
    """docs/reference/operators.md is what ``python -m models.network.reference`` prints."""
    assert (REFERENCE / "operators.md").read_text("utf-8") == operators_page.markdown()


def test_budgets_are_those_of_the_figures() -> None:
    """docs/research/budgets.md and its picture: what ``python -m benchmarks.planning.budgets`` writes."""
    text, figures = budgets.PAGE.read_text("utf-8"), budgets.networks()
    assert budgets.page(text, figures) == text
    assert budgets.PICTURE.read_text("utf-8") == budgets.picture(figures)


def test_every_outcome_is_described() -> None:
    text = (REFERENCE / "metrics.md").read_text("utf-8")
    assert {outcome for outcome in Outcome if f"`{outcome}`" not in text} == set()


def test_every_code_and_error_is_described() -> None:
    """docs/reference/errors.md has what ``python -m server.faults`` prints."""
    text = (REFERENCE / "errors.md").read_text("utf-8")
    assert faults.table() in text
    assert {
        name for name in layerstream.__all__ if name.endswith("Error") and f"`{name}`" not in text
    } == set()


def test_messages_of_symptoms_are_in_the_sources() -> None:
    """What docs/how-to/symptoms.md quotes as seen; ``...`` stands for what changes."""
    packages = ("cli", "server", "models", "pipeline", "loader")
    files = (path for name in packages for path in (ROOT / name).rglob("*.py"))
    sources = "\n".join(path.read_text("utf-8") for path in files)
    sources = re.sub(r'"\n\s*f?"', "", sources)  # one text on several lines
    cells = [
        text.split("|")[1]
        for _, text in PAGES["docs/how-to/symptoms.md"].prose
        if text.startswith("| ") and "`" in text.split("|")[1]
    ]
    quoted = [span for cell in cells for span in re.findall(r"`([^`]{12,})`", cell)]
    assert len(quoted) > 30
    lost = [
        text
        for span in quoted
        for text in span.split("...")
        if text.strip() and text.strip() not in sources
    ]
    assert lost == []


def test_links_out_of_the_site_are_plain_text() -> None:
    hook = runpy.run_path(str(ROOT / "tools" / "pages.py"))["on_page_markdown"]
    page = SimpleNamespace(file=SimpleNamespace(src_uri="how-to/page.md"), meta={})
    text = "[a](../../LICENSE) [b](../reference/b.md)\n```\n[c](../../c)\n```\n[d](../../d.md#e)\n"
    assert hook(text, page=page) == "a [b](../reference/b.md)\n```\n[c](../../c)\n```\nd\n"


def test_a_block_without_an_end_is_an_error() -> None:
    with pytest.raises(ValueError, match="line 3"):
        read("# A\n```sh\nls\n")


def test_the_readme_is_text_that_a_shell_and_python_read() -> None:
    blocks = [block for block in PAGES["README.md"].blocks if block.language in {"sh", "python"}]
    assert [block.language for block in blocks].count("python") == 1
    for block in blocks:
        if block.language == "python":
            ast.parse(block.text)
    subprocess.run(["bash", "-n", "-c", script(blocks, "README.md")], check=True)


def run(*blocks: Block) -> subprocess.CompletedProcess[str]:
    text = script(list(blocks), "PAGE")
    return subprocess.run(["bash", "-c", text], capture_output=True, text=True, check=False)


def test_blocks_run_in_one_shell_until_one_fails(tmp_path: Path) -> None:
    """What one block sets the next one sees; a failure at any place ends it, and its line is said."""
    good = run(Block("sh", "word=seen\ntrue\n", 3), Block("sh", "echo $word\n", 7))
    assert good.returncode == 0
    assert good.stdout.split() == [
        "==",
        "PAGE:3",
        "==",
        "PAGE:7",
        "seen",
        "PASS",
        "PAGE:",
        "2",
        "blocks",
    ]
    for text in ("false\ntrue\n", "true && false\n", "exit 3\n"):
        bad = run(Block("sh", text, 3), Block("sh", "echo after\n", 7))
        assert bad.returncode != 0
        assert "FAIL PAGE:3" in bad.stdout
        assert "after" not in bad.stdout


def test_a_reader_has_none_of_the_callers_environment(tmp_path: Path) -> None:
    given = {
        "PATH": "/mine",
        "VIRTUAL_ENV": "/v",
        "PIP_INDEX_URL": "u",
        "https_proxy": "p",
        "HOME": "/h",
    }
    found = environment(tmp_path, given)
    assert found["HOME"] == str(tmp_path)
    assert "/mine" not in found["PATH"]
    assert {"PIP_INDEX_URL", "https_proxy"} < set(found)
    assert "VIRTUAL_ENV" not in found
