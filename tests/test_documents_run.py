"""Commands of pages run as they are printed, in a folder that has the files which a reader would bring.

The table of pages, and of what does not run here, is in ``tests.shown``.
"""

import re
import sys
from pathlib import Path

import pytest

from benchmarks.servers.served import free_port
from tests.check_readme import moved, run, script
from tests.documents import ROOT, Block, pages, shows
from tests.shown import APART, COMMANDS, ELSEWHERE, SHOWN, Kit, Shown, blocks, why_not

PAGES = pages()
SECONDS = 400.0
_GRPC = "8001"  # the port of pages on gRPC

# Servers of a page load what its next lines compile: a reader would ask again.
CURLRC = """fail
retry = 40
retry-delay = 1
retry-all-errors
"""

# A server in the foreground of a console: the next lines are another terminal's. It ends when the next
# one begins.
SERVED = """server=
printed() {  # `up` prints a line for each model as it comes
    lines=
    until [ "$lines" = "$(wc -l < server.out)" ]; do
        lines=$(wc -l < server.out)
        sleep 1
    done
    cat server.out
}
served() {
    [ -z "$server" ] || { kill "$server"; wait "$server"; }
    "$@" > server.out 2> server.log &
    server=$!
    for _ in $(seq 300); do
        case $(curl -qs localhost:8080/v2/health/ready) in
        *'"ready":true'* | *'no model serves'*) printed; return ;;
        esac
        kill -0 "$server" || break
        sleep 0.2
    done
    cat server.log
    return 1
}
"""
_SERVES = re.compile(r"^(?=layerstream (serve|up) [^&]*$)", re.MULTILINE)
_ASKED = """mkdir -p repository
served layerstream serve --repository repository --budget 64MiB --model-control poll
"""


def reader(folder: Path) -> dict[str, str]:
    """Return what a reader's shell has in a clone: our commands, and a client that asks again.

    Servers look at their repository often: what a page compiles is served at once.
    """
    programs = folder / ".bin"
    programs.mkdir()
    for name, words in (("layerstream", " -m cli"), ("python", "")):
        path = programs / name
        path.write_text(f'#!/bin/sh\nexec "{sys.executable}"{words} "$@"\n', "utf-8")
        path.chmod(0o755)
    (folder / ".curlrc").write_text(CURLRC, "utf-8")
    for name in ("models", "docs"):
        (folder / name).symlink_to(ROOT / name)
    return {
        "PATH": f"{programs}:/usr/local/bin:/usr/bin:/bin",
        "PYTHONPATH": str(ROOT),
        "CURL_HOME": str(folder),
        "LAYERSTREAM_POLL_INTERVAL": "0.5",
    }


def typed(block: Block) -> Block:
    """Return what a reader types of a block; a server that a console waits for runs beside the rest.

    What a command prints comes to a file where the page shows its output.
    """
    if block.language != "console":
        return block
    text = ""
    for index, (command, expected) in enumerate(block.exchanges):
        run_command = _SERVES.sub("served ", command)
        file = printed_name(block, index)
        text += f"{{\n{run_command}}} > {file}\ncat {file}\n" if expected else run_command
    return Block("sh", text, block.line)


def printed_name(block: Block, index: int) -> str:
    """Return the file with what the command number ``index`` of ``block`` has printed."""
    return f".printed-{block.line}-{index}"


def differences(blocks: list[Block], folder: Path) -> list[str]:
    """Return LINE: OUTPUT of what was printed otherwise than the page has it."""
    return [
        f"{block.line}: {printed}"
        for block in blocks
        for index, (_, expected) in enumerate(block.exchanges)
        if expected
        and not shows(expected, printed := (folder / printed_name(block, index)).read_text("utf-8"))
    ]


@pytest.fixture(scope="session")
def kit(tmp_path_factory: pytest.TempPathFactory) -> Kit:
    return Kit(tmp_path_factory.mktemp("kit"))


@pytest.mark.slow
@pytest.mark.parametrize("shown", SHOWN, ids=lambda shown: shown.page)
def test_a_page_runs_as_it_is_printed(shown: Shown, kit: Kit, tmp_path: Path) -> None:
    shown.bring(kit, tmp_path)
    first = Block("sh", SERVED + (_ASKED if shown.asks else ""), 0)
    those = blocks(shown)
    text = script([first, *map(typed, those)], shown.page)
    text = moved(text, free_port()).replace(_GRPC, str(free_port()))
    assert run(text, tmp_path, SECONDS, reader(tmp_path)) == 0
    assert differences(those, tmp_path) == []


def test_outputs_are_compared_but_for_figures(tmp_path: Path) -> None:
    text = "$ one \\\n  two\nA 1.5 MiB\n...\nB ... C\n$ three\n$ four\n{}\n"
    block = Block("console", text, 3)
    assert block.exchanges == [
        ("one \\\n  two\n", "A 1.5 MiB\n...\nB ... C\n"),
        ("three\n", ""),
        ("four\n", "{}\n"),
    ]
    assert block.commands == "one \\\n  two\nthree\nfour\n"
    printed = "{\none \\\n  two\n} > .printed-3-0\ncat .printed-3-0\nthree\n"
    assert typed(block).text.startswith(printed)
    (tmp_path / printed_name(block, 2)).write_text("{}", "utf-8")
    for output, is_same in (
        ("A   12,345 MiB\nB 1 C\n", True),
        ("A 1 MiB\nx\ny\n\nB C C", True),
        ("A 1 KiB\nB 1 C\n", False),
        ("A 1 MiB\nB 1 C\nmore\n", False),
    ):
        (tmp_path / printed_name(block, 0)).write_text(output, "utf-8")
        assert differences([block], tmp_path) == ([] if is_same else [f"3: {output}"])


def test_every_block_of_commands_runs_or_says_why_not() -> None:
    shown = {shown.page for shown in SHOWN}
    neither = [
        f"{name}:{block.line}"
        for name, page in PAGES.items()
        for block in page.blocks
        if block.language in COMMANDS and name not in shown and not why_not(name, block)
    ]
    assert neither == []


def test_what_the_table_says_is_on_the_pages() -> None:
    """No entry is left of a block that has gone, and each page in the table has a block that runs."""
    found = {
        entry
        for entry in APART
        for block in PAGES[entry.page].blocks
        if block.language in COMMANDS and entry.words in block.text
    }
    assert set(APART) - found == set()
    assert [shown.page for shown in SHOWN if not blocks(shown)] == []


def test_checks_elsewhere_run_the_pages_that_the_table_says() -> None:
    text = (ROOT / "tools/check_deploy.sh").read_text("utf-8")
    names = re.search(r"/docs/how-to/\{([\w,]+)\}\.md", text)
    assert names is not None
    deployed = {f"docs/how-to/{name}.md" for name in names[1].split(",")}
    assert deployed | {"README.md"} == set(ELSEWHERE)


def test_blocks_without_commands_have_no_commands() -> None:
    """A block is of a shell, of Python, or of another language; code is in no other form."""
    first = {
        line.split()[0]
        for page in PAGES.values()
        for block in page.blocks
        for line in block.commands.splitlines()
        if re.match(r"[\w./-]+ ", line)
    }
    others = {"toml", "json", "yaml", "ini", "text", "c"}
    lines = [
        (f"{name}:{block.line}", line)
        for name, page in PAGES.items()
        for block in page.blocks
        if block.language not in COMMANDS
        for line in block.text.splitlines()
    ]
    lines += [
        (f"{name}:{number}", text[4:])
        for name, page in PAGES.items()
        for number, text in page.prose
        if text.startswith("    ")
    ]
    assert [place for place, line in lines if line and line.split()[0] in first | {"$"}] == []
    languages = {block.language for page in PAGES.values() for block in page.blocks}
    assert languages == others | set(COMMANDS)
