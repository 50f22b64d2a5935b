"""The text of a cfg file: sections of options, as Darknet reads them.

A line loses all its blanks; one that then starts with # or ; is a comment. The first of two equal
options counts. What Darknet reads without complaint but cannot mean is an error here.
"""

from collections.abc import Iterable
from pathlib import Path

from models.darknet.cfg.section import Section
from models.darknet.cfg.tables import canonical, is_ignored
from models.darknet.errors import DarknetError, short

# The longest cfg of Darknet's own has 25 KB.
MAX_BYTES = 1 << 20

_BLANKS = str.maketrans("", "", " \t\r")


def read_cfg(path: Path) -> list[Section]:
    """Return the sections of the file; the first one is [net].

    Raises:
        DarknetError: the file is missing, too long, no text, or what `parse_cfg` refuses.
    """
    try:
        with path.open("rb") as file:
            data = file.read(MAX_BYTES + 1)
    except OSError as exc:
        raise DarknetError(f"{path}: {exc.strerror or exc}") from exc
    if len(data) > MAX_BYTES:
        raise DarknetError(f"{path}: longer than {MAX_BYTES} bytes, which no cfg is")
    if b"\0" in data:
        raise DarknetError(f"{path}: not a text file")
    # Comments come in any encoding; what Darknet understands is ASCII.
    return parse_cfg(data.decode("utf-8-sig", "replace"), str(path))


def parse_cfg(text: str, where: str) -> list[Section]:
    """Return the sections of ``text``; the first one is [net]. Errors start with ``where``.

    Raises:
        DarknetError: a line is neither section, option nor comment, an option is given twice
            with different values, or the first section is not [net].
    """
    sections: list[Section] = []
    options: dict[str, str] = {}
    lines: dict[str, int] = {}
    for number, line in enumerate(text.split("\n"), 1):
        bare = line.translate(_BLANKS)
        if not bare or bare[0] in "#;":
            continue
        at = f"{where}: line {number}"
        if bare[0] == "[":
            options, lines = {}, {}
            sections.append(Section(_kind(bare, at), options, number, lines))
            continue
        key, value = _option(bare, at)
        if not sections:
            raise DarknetError(f"{at}: option {key} before the first section")
        if key in options:
            _check_repeated(sections[-1], key, value, at)
        else:
            options[key], lines[key] = value, number
    if not sections:
        raise DarknetError(f"{where}: no sections in it")
    if canonical(sections[0].kind) != "net":
        raise DarknetError(
            f"{where}: line {sections[0].line}: the first section is [{sections[0].kind}], not [net]"
        )
    return sections


def _kind(line: str, at: str) -> str:
    name, bracket, rest = line[1:].partition("]")
    if not bracket or not name or (rest and rest[0] not in "#;"):
        raise DarknetError(f"{at}: {short(line)!r} is not a section such as [convolutional]")
    return name


def _option(line: str, at: str) -> tuple[str, str]:
    key, equals, value = line.partition("=")
    if not equals or not key:
        raise DarknetError(f"{at}: {short(line)!r} is neither a section nor an option")
    # Darknet's atoi and atof stop at a comment behind a number, too.
    for mark in "#;":
        value = value.partition(mark)[0]
    return key, value


def _check_repeated(section: Section, key: str, value: str, at: str) -> None:
    if section.options[key] == value or is_ignored(section.kind, key):
        return
    raise DarknetError(
        f"{at}: [{short(section.kind)}] {short(key)}={short(value)} contradicts {short(key)}="
        f"{short(section.options[key])}"
        f" in line {section.option_lines[key]}"
    )


def format_cfg(sections: Iterable[Section]) -> str:
    """Return ``sections`` as the text of a cfg, without comments and blanks."""
    return "\n".join(
        "".join([f"[{section.kind}]\n", *(f"{k}={v}\n" for k, v in section.options.items())])
        for section in sections
    )
