"""The check of words: names and texts that are new use the words of the field (tools/words.csv).

``python -m tools.words`` compares the names, messages, help texts, docstrings and pages of this checkout
with ``tools/retired.txt``, the list of retired words that are still in use. A retired word that the list
does not have is an error. The list shrinks by itself: when a name or a sentence goes, its entry goes.
``python -m tools.words glossary`` writes docs/glossary.md from the table.
"""

import ast
import csv
import gc
import hashlib
import itertools
import re
import subprocess
import sys
import tempfile
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from tests.documents import ROOT, read

TABLE = Path("tools/words.csv")
LIST = Path("tools/retired.txt")
GLOSSARY = Path("docs/glossary.md")
PRODUCT = ("models", "loader", "pipeline", "papers", "server", "layerstream", "cli")
#: Names are checked here, too; their strings are data.
OTHERS = ("benchmarks", "deploy", "tools", "tests")
#: Made by programs: from the table, and from help texts that are checked where they are written.
GENERATED = (
    GLOSSARY,
    Path("docs/reference/options.md"),
    Path("docs/reference/options-operate.md"),
    Path("server/grpc/messages/inference_pb2.py"),
)
#: Versions of the list that are compared with the one before them.
MAX_VERSIONS = 10

_NAME_WORD = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|\d+")
_CODE = re.compile(r"`[^`]*`")
_SENTENCE = re.compile(r"(?<=[.;:!?])\s+")
_SPELLING = re.compile(r"^(\d+): .*\n\t(\S+) ==> ", re.MULTILINE)

Phrase = tuple[str, ...]
#: How often each file has each retired name, or each sentence with a retired word.
Usage = Counter[tuple[str, str]]


@dataclass(frozen=True)
class Row:
    """A line of the table: a word of ours, what the field says, and where that applies."""

    ours: str
    field: str
    where: str
    checked: str
    section: str
    meaning: str

    @property
    def words(self) -> list[str]:
        return [word.strip().strip("_").lower() for word in self.ours.split(",")]


class Table:
    """The retired words: in names, as exact names, in sentences."""

    def __init__(self, rows: Iterable[Row]) -> None:
        self.rows = tuple(rows)
        self.phrases = self._retired("names", "names and prose")
        self.exact_names = self._retired("exact names")
        self.prose = {word: rows for (word,), rows in self._retired("names and prose").items()}
        self._longest = max(map(len, self.phrases), default=0)

    def _retired(self, *checked: str) -> dict[Phrase, list[Row]]:
        retired = defaultdict(list)
        for row in self.rows:
            if row.checked in checked:
                for word in row.words:
                    retired[tuple(word.split("_"))].append(row)
        return dict(retired)

    def in_name(self, name: str) -> dict[str, list[Row]]:
        """Return the retired words of an identifier, each with its rows of the table."""
        words = tuple(word.lower() for word in _NAME_WORD.findall(name))
        retired = {name.strip("_"): rows} if (rows := self.exact_names.get(words)) else {}
        for length in range(1, self._longest + 1):
            for start in range(len(words) - length + 1):
                phrase = words[start : start + length]
                if rows := self.phrases.get(phrase):
                    retired["_".join(phrase)] = rows
        return retired


def read_table(path: Path) -> Table:
    """Read the table.

    Raises:
        ValueError: a row lacks a column, or ``checked`` has an unknown value.
    """
    rows = []
    with path.open(newline="", encoding="utf-8") as file:
        for line, columns in enumerate(csv.DictReader(file), 2):
            if None in columns or None in columns.values():
                raise ValueError(f"{path}:{line}: a row has six columns")
            if columns["checked"] not in ("", "names", "exact names", "names and prose"):
                raise ValueError(f"{path}:{line}: checked is {columns['checked']!r}")
            rows.append(Row(**columns))
    return Table(rows)


def bindings_and_strings(tree: ast.AST) -> Iterator[tuple[int, str, bool]]:
    """Yield (line, text, whether it is a name) of what a module binds, and of its strings.

    A name counts once for each scope that binds it. The values in an f-string become ``{}``.
    """
    pending: list[tuple[ast.AST, set[str]]] = [(tree, set())]
    while pending:
        node, scope = pending.pop()
        if isinstance(node, ast.Constant):
            if isinstance(node.value, str):
                yield node.lineno, node.value, False
            continue
        if isinstance(node, ast.JoinedStr):
            yield node.lineno, "".join(map(_literal, node.values)), False
            pending += [
                (value, scope) for value in node.values if isinstance(value, ast.FormattedValue)
            ]
            continue
        name = _bound_name(node)
        if name and name not in scope:
            scope.add(name)
            yield getattr(node, "lineno", 1), name, True
        if type(node) in _SCOPES:
            scope = set()
        for child in map(node.__dict__.get, node._fields):
            if isinstance(child, list):
                pending += [(item, scope) for item in child if isinstance(item, ast.AST)]
            elif isinstance(child, ast.AST):
                pending.append((child, scope))


def _bound_name(node: ast.AST) -> str | None:
    attribute = _BINDING.get(type(node))
    if attribute and isinstance(getattr(node, "ctx", _STORE), ast.Store):
        name = node.__dict__.get(attribute)
        return name if isinstance(name, str) else None
    return None


def _literal(value: ast.expr) -> str:
    return str(value.value) if isinstance(value, ast.Constant) else "{}"


#: The attribute with the name that a node binds; a node that has a context binds it if that is a store.
_BINDING = {
    ast.FunctionDef: "name",
    ast.AsyncFunctionDef: "name",
    ast.ClassDef: "name",
    ast.ExceptHandler: "name",
    ast.MatchAs: "name",
    ast.MatchStar: "name",
    ast.MatchMapping: "rest",
    ast.Name: "id",
    ast.Attribute: "attr",
    ast.arg: "arg",
    ast.alias: "asname",
}
_STORE = ast.Store()
_SCOPES = {ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Lambda}


def paragraphs(page: str) -> Iterator[tuple[int, str]]:
    """Yield (line, text) of the paragraphs, items and rows of a page of Markdown, without code."""
    first, lines, last = 0, list[str](), 0
    for line, text in read(page).prose:
        if lines and (
            line > last + 1 or not text.strip() or text.lstrip().startswith(("|", "-", "#"))
        ):
            yield first, " ".join(lines)
            lines = []
        if not lines:
            first = line
        lines.append(_CODE.sub("", text))
        last = line
    if lines:
        yield first, " ".join(lines)


def sentences(text: str) -> Iterator[str]:
    """Yield the sentences of a text, each on one line."""
    yield from _SENTENCE.split(" ".join(_CODE.sub("", text).split()))


class Survey:
    """What a checkout uses of the table: how often each file has each item, and on which lines.

    An item is a name, or ``word:digest`` of a sentence: a sentence that changes is a new item.
    """

    def __init__(self, table: Table) -> None:
        self.usage: Usage = Counter()
        self.lines: dict[tuple[str, str], list[int]] = defaultdict(list)
        self._table = table
        self._rows: dict[str, dict[str, list[Row]]] = {}
        self._sentences: list[tuple[str, int, str]] = []

    def add_file(self, path: str, source: str) -> None:
        """Add a page of Markdown or a module of Python.

        Raises:
            SyntaxError: the module is not Python.
        """
        if path.endswith(".md"):
            for line, text in paragraphs(source):
                self._add_text(path, line, text)
            return
        self._add_name(path, 1, Path(path).stem)
        for line, text, is_name in bindings_and_strings(ast.parse(source, path)):
            if is_name:
                self._add_name(path, line, text)
            elif path.startswith(PRODUCT) and text.count(" ") >= 2:
                self._add_text(path, line, text)

    def check_sentences(self) -> None:
        """Add the sentences that have a retired word: all at once, as a process takes a while."""
        texts = [sentence for _, _, sentence in self._sentences]
        for index, word in spelling(self._table.prose, texts):
            path, line, sentence = self._sentences[index]
            digest = hashlib.sha256(sentence.lower().encode()).hexdigest()[:8]
            self._add(path, line, f"{word}:{digest}", {word: self._table.prose[word]})
        self._sentences.clear()

    def complaint(self, path: str, item: str) -> str:
        """Return the line about an item that the list does not have: where, and the words to use."""
        lines = ", ".join(str(line) for line in sorted(self.lines[path, item]))
        subject = "this sentence" if ":" in item else item
        words = "; ".join(
            f'for "{word}": {_fields(rows)}' for word, rows in self._rows[item].items()
        )
        return f"{path}:{lines}: {subject} has a retired word; use {words}"

    def _add_name(self, path: str, line: int, name: str) -> None:
        if name not in self._rows:
            self._rows[name] = self._table.in_name(name)
        if rows := self._rows[name]:
            self._add(path, line, name, rows)

    def _add_text(self, path: str, line: int, text: str) -> None:
        self._sentences += [(path, line, sentence) for sentence in sentences(text)]

    def _add(self, path: str, line: int, item: str, rows: dict[str, list[Row]]) -> None:
        self.usage[path, item] += 1
        self.lines[path, item].append(line)
        self._rows[item] = rows


def _fields(rows: list[Row]) -> str:
    """Return the field's words; if they depend on the meaning, with it."""
    if len(rows) == 1:
        return rows[0].field
    return " | ".join(f"{row.field} ({row.where.partition(':')[0]})" for row in rows)


def survey(root: Path, table: Table) -> Survey:
    """Return what the checkout in ``root`` uses of the retired words."""
    result = Survey(table)
    for path in _files(root):
        result.add_file(path.relative_to(root).as_posix(), path.read_text("utf-8"))
    result.check_sentences()
    return result


def _files(root: Path) -> Iterator[Path]:
    generated = {root / path for path in GENERATED}
    for folder in (*PRODUCT, *OTHERS):
        yield from sorted({*(root / folder).rglob("*.py")} - generated)
    yield from sorted(root.glob("*.md"))
    yield from sorted({*(root / "docs").rglob("*.md")} - generated)


def spelling(retired: dict[str, list[Row]], lines: list[str]) -> Iterator[tuple[int, str]]:
    """Yield (index, word) of the lines that have a retired word, as codespell finds them.

    Raises:
        RuntimeError: codespell does not run.
    """
    with tempfile.NamedTemporaryFile("w", suffix=".txt", encoding="utf-8") as dictionary:
        for word, rows in retired.items():
            dictionary.write(f"{word}->{', '.join(row.field for row in rows)},\n")
        dictionary.flush()
        command = [sys.executable, "-m", "codespell_lib", "--config", "/dev/null", "-D"]
        done = subprocess.run(  # noqa: S603
            [*command, dictionary.name, "-"],
            input="".join(f"{line}\n" for line in lines),
            capture_output=True,
            text=True,
            check=False,
        )
    if done.returncode not in (0, 65):  # 65: it found words
        raise RuntimeError(f"codespell ended with {done.returncode}: {done.stderr.strip()}")
    for line, word in _SPELLING.findall(done.stdout):
        yield int(line) - 1, word.lower()


def parse_list(text: str) -> Usage:
    """Read a list: a line for each file, then its items, indented, with how often if not once."""
    usage: Usage = Counter()
    path = ""
    for line in text.splitlines():
        if line.startswith(" "):
            item, _, count = line.strip().partition(" ")
            usage[path, item] = int(count or 1)
        else:
            path = line
    return usage


def format_list(usage: Usage) -> str:
    """Return the text that ``parse_list`` reads."""
    lines, last = [], ""
    for (path, item), count in sorted(usage.items()):
        if path != last:
            lines.append(path)
            last = path
        lines.append(f"  {item}" if count == 1 else f"  {item} {count}")
    return "".join(f"{line}\n" for line in lines)


def grown(old: Usage, new: Usage) -> dict[str, list[str]]:
    """Return the items that ``new`` has more often than ``old``, with the files where each grew.

    What moved from one file to another did not grow.
    """
    surplus: Counter[str] = Counter()
    for (_, item), count in new.items():
        surplus[item] += count
    for (_, item), count in old.items():
        surplus[item] -= count
    return {
        item: sorted(
            path for path, name in new if name == item and new[path, item] > old[path, item]
        )
        for item, count in surplus.items()
        if count > 0
    }


def versions(root: Path) -> list[str]:
    """Return the list as it is committed, newest first; nothing where there is no history."""

    def git(*arguments: str) -> str:
        command = ["git", "-C", str(root), *arguments]
        done = subprocess.run(command, capture_output=True, text=True, check=False)  # noqa: S603
        return done.stdout if done.returncode == 0 else ""

    commits = git(
        "log", "--first-parent", f"-{MAX_VERSIONS}", "--format=%H", "--", str(LIST)
    ).split()
    return [text for commit in commits if (text := git("show", f"{commit}:{LIST.as_posix()}"))]


def check(root: Path) -> list[str]:
    """Return what is wrong; if nothing is, shorten the list to what is in use."""
    table = read_table(root / TABLE)
    text = (root / LIST).read_text("utf-8")
    history = [parse_list(version) for version in (text, *versions(root))]
    errors = [
        f"{LIST}: {item} was added ({', '.join(paths)}); the list may only shrink"
        for new, old in itertools.pairwise(history)
        for item, paths in grown(old, new).items()
    ]
    current = survey(root, table)
    errors += sorted(
        current.complaint(path, item)
        for item, paths in grown(history[0], current.usage).items()
        for path in paths
    )
    if (root / GLOSSARY).read_text("utf-8") != glossary(table):
        errors.append(f"{GLOSSARY} is not what the table says: python -m tools.words glossary")
    if not errors and current.usage != history[0]:
        (root / LIST).write_text(format_list(current.usage), "utf-8")
        before, after = history[0].total(), current.usage.total()
        print(f"{LIST}: {after} uses of retired words, {before} before; commit it")
    return errors


def glossary(table: Table) -> str:
    """Return docs/glossary.md."""
    sections: dict[str, list[Row]] = defaultdict(list)
    for row in table.rows:
        if row.section:
            sections[row.section].append(row)
    lines = _HEAD.splitlines()
    for section, rows in sections.items():
        lines += ["", f"## {section}", "", "| word | of the field | meaning |", "|---|---|---|"]
        lines += [f"| {row.ours} | {row.field} | {row.meaning} |" for row in rows]
    return "\n".join(lines) + "\n"


_HEAD = """\
# Glossary

```console
$ layerstream inspect repository/cifar10 | grep streams
streams      in 38 pieces of 8 kinds, 38 spans; the smallest ring takes ..., or ... where chunks are joined
```

The project's own terms, each with the nearest word of the field. All others are the field's: those of
ONNX, of the Open Inference Protocol, of Linux and of the [papers](#papers). Bytes are `int`, times
`float` seconds, intervals half-open. MB are 10^6 bytes, MiB 2^20.
Written by `python -m tools.words glossary` from tools/words.csv."""


def main(arguments: list[str]) -> int:
    """Run the check, or write the glossary; return the exit status."""
    gc.disable()  # trees of syntax are many objects and no circles: half of the time
    if arguments == ["glossary"]:
        (ROOT / GLOSSARY).write_text(glossary(read_table(ROOT / TABLE)), "utf-8")
        return 0
    errors = check(ROOT)
    for error in errors:
        print(error, file=sys.stderr)
    return 1 if errors else 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
