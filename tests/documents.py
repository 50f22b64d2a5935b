"""What the Markdown pages say: blocks, headings, links. Pure, and only the standard library."""

import re
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

ROOT = Path(__file__).resolve().parents[1]

#: The metrics that docs/reference/metrics.md describes, by the names that queries use.
METRIC_NAMES = frozenset(
    re.findall(
        r"`(layerstream_\w+)", (ROOT / "docs" / "reference" / "metrics.md").read_text("utf-8")
    )
)
#: Of them, those that need a profile of the model, and those of a control group with a memory limit.
PREDICTIONS = frozenset({"layerstream_predicted_seconds", "layerstream_bound_seconds"})
LIMITED = frozenset({"layerstream_cgroup_limit_bytes", "layerstream_cgroup_held_bytes"})

_FENCE = re.compile(r"^(?P<fence>```+)(?P<language>[a-z]*)\s*$")
_HEADING = re.compile(r"^#{1,6} +(?P<text>.+?)\s*$")
_LINK = re.compile(r"!?\[[^\]]*\]\((?P<target>[^)\s]+)\)")
_CODE = re.compile(r"`[^`]*`")
# Paths of code: as a page may write them, and files that are nowhere but in a repository like this one.
_FILE = re.compile(r"[\w./-]+")
_SOURCE = re.compile(r"[\w./-]+\.(?:py|cu|cuh)")
_MADE = re.compile(r"\.onnx$|^models/onnx")  # of other repositories, and what commands write


@dataclass(frozen=True)
class Block:
    """A fenced block: its language, its text, and the line of the page on which the text begins."""

    language: str
    text: str
    line: int

    @property
    def commands(self) -> str:
        """What of it is for a shell: all of ``sh``; of ``console`` the lines behind ``$ ``, whole."""
        if self.language != "console":
            return self.text if self.language == "sh" else ""
        return "".join(command for command, _ in self.exchanges)

    @property
    def exchanges(self) -> list[tuple[str, str]]:
        """Of ``console``: each command, and the output that the page shows, which may be none."""
        found, open_line = list[list[str]](), False
        for line in self.text.splitlines():
            if open_line or line.startswith("$ "):
                text = line if open_line else line[2:]
                if not open_line:
                    found.append(["", ""])
                found[-1][0] += f"{text}\n"
                open_line = line.endswith("\\")
            elif found:
                found[-1][1] += f"{line}\n"
        return [(command, output) for command, output in found]


_FIGURE = re.compile(r"\d+(?:[.,]\d+)*")


def shows(expected: str, printed: str) -> bool:
    """Say whether a page that has ``expected`` shows an output, but for figures and widths of columns.

    ``...`` stands for any text of a line, on a line of its own for any lines.
    """
    pattern = ""
    for line in _without_figures(expected):
        escaped = ".*".join(map(re.escape, line.split("..."))) + "\n"
        pattern += r"(?:.*\n)*?" if line == "..." else escaped
    text = "".join(f"{line}\n" for line in _without_figures(printed))
    return re.fullmatch(pattern, text) is not None


def _without_figures(text: str) -> list[str]:
    return [" ".join(_FIGURE.sub("#", line).split()) for line in text.strip().splitlines()]


@dataclass(frozen=True)
class Page:
    """A page in parts: prose without blocks, as (line, text), and the blocks."""

    prose: tuple[tuple[int, str], ...]
    blocks: tuple[Block, ...]

    @property
    def anchors(self) -> frozenset[str]:
        """What a link to a heading of this page may name, as GitHub makes it."""
        seen: dict[str, int] = {}
        found = []
        for _, text in self.prose:
            if heading := _HEADING.match(text):
                name = anchor(heading["text"])
                count = seen.get(name, 0)
                seen[name] = count + 1
                found.append(f"{name}-{count}" if count else name)
        return frozenset(found)

    @property
    def links(self) -> Iterator[tuple[int, str]]:
        """Yield (line, target) of every link and image that is not in code."""
        for line, text in self.prose:
            for link in _LINK.finditer(_CODE.sub("code", text)):
                yield line, link["target"]


def read(text: str) -> Page:
    """Take a page apart.

    Raises:
        ValueError: a block has no end.
    """
    prose, blocks = [], []
    fence, language, start, inside = "", "", 0, list[str]()
    for number, line in enumerate(text.splitlines(), 1):
        if fence:
            if line.strip() == fence:
                blocks.append(Block(language, "\n".join(inside) + "\n", start))
                fence = ""
            else:
                inside.append(line)
        elif opening := _FENCE.match(line):
            fence, language, start, inside = opening["fence"], opening["language"], number + 1, []
        else:
            prose.append((number, line))
    if fence:
        raise ValueError(f"the block that begins on line {start} has no end")
    return Page(tuple(prose), tuple(blocks))


def anchor(heading: str) -> str:
    """Return the name of a heading in links: small, without punctuation, hyphens for blanks."""
    text = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading).lower()
    return re.sub(r"[^\w\- ]", "", text).replace(" ", "-")


def broken_links(pages: Mapping[str, Page], root: Path = ROOT) -> list[str]:
    """Return PAGE:LINE: TARGET of links that lead nowhere; ``pages``: by path in ``root``, with slashes."""
    broken = []
    for path, page in pages.items():
        for line, target in page.links:
            if re.match(r"[a-z]+:", target):
                continue  # another site's
            name, _, place = target.partition("#")
            found = (root / PurePosixPath(path).parent / name).resolve() if name else root / path
            known = found.relative_to(root).as_posix() if found.is_relative_to(root) else ""
            lost = place and (known not in pages or place not in pages[known].anchors)
            if not known or not found.exists() or lost:
                broken.append(f"{path}:{line}: {target}")
    return broken


def pages(root: Path = ROOT) -> dict[str, Page]:
    """Return the pages that people read, by path in ``root``."""
    paths = [root / name for name in ("README.md", "CONTRIBUTING.md", "CHANGELOG.md")]
    paths += [
        path for folder in ("docs", "deploy") for path in sorted((root / folder).rglob("*.md"))
    ]
    return {path.relative_to(root).as_posix(): read(path.read_text("utf-8")) for path in paths}


def navigation(root: Path = ROOT) -> list[str]:
    """Return the pages that the site has in its navigation, in their order, by path in ``root``."""
    text = (root / "mkdocs.yml").read_text("utf-8")
    found = re.findall(
        r"^ +- (?:[^:\n]+: )?(\S+\.md)$", text.partition("\nnav:\n")[2], re.MULTILINE
    )
    return [f"docs/{name}" for name in found]


def lost_paths(pages: Mapping[str, Page], files: Collection[str]) -> list[str]:
    """Return PAGE:LINE: PATH of code that is not among ``files``, which are all of the repository.

    A path from the root is there as it stands. A shorter one, and a file of Python or CUDA alone, is
    the end of a path: a page about a folder does not write that folder each time.
    """
    folders = {parent.as_posix() for name in files for parent in PurePosixPath(name).parents}
    ends = {
        name[place + 1 :] for name in files for place, letter in enumerate(name) if letter == "/"
    }
    known = {*files, *folders, *ends}
    top = {name.partition("/")[0] for name in files if "/" in name}
    lost = []
    for path, page in pages.items():
        for line, text in page.prose:
            for span in re.findall(r"`([^`\s]+)`", text):
                name = span.rstrip("/")
                whole = name.partition("/")[0] in top and "/" in name and not _MADE.search(name)
                code = (whole and _FILE.fullmatch(name)) or _SOURCE.fullmatch(name)
                if code and name not in known:
                    lost.append(f"{path}:{line}: {span}")
    return lost
