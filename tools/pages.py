"""Hooks of MkDocs: links, code in tables, the version, and what a search prefers."""

import re
import tomllib
from fnmatch import fnmatch
from pathlib import Path, PurePosixPath
from typing import Any

_BLOCK = re.compile(r"^```.*?^```\s*$", re.MULTILINE | re.DOTALL)
# A row of a table keeps code with ``|`` whole on the site; GitHub wants the backslash.
_ROW_CODE = re.compile(r"`[^`\n]*\\\|[^`\n]*`")
_LINK = re.compile(r"\[(?P<text>[^\]]*)\]\((?P<up>(?:\.\./)+)[^)\s]*\)")
#: Pages that a search shows first, and those that it shows last: a message or a command is on many.
_BOOSTS = {
    "how-to/symptoms.md": 7,
    "reference/options*.md": 3,
    "reference/settings.md": 2,
    "explanation/*": 0.5,
    "research/*": 0.5,
}


def on_config(config: Any, **_: Any) -> Any:
    """Show the version of this checkout at the end of each page."""
    project = tomllib.loads(
        (Path(config.config_file_path).parent / "pyproject.toml").read_text("utf-8")
    )
    config.copyright = f"{config.site_name} {project['project']['version']}"
    return config


def on_page_markdown(markdown: str, *, page: Any, **_: Any) -> str:
    """Return ``markdown`` without links to files that are not below docs/; blocks stay as they are."""
    for pages, boost in _BOOSTS.items():
        if fnmatch(page.file.src_uri, pages):
            page.meta["search"] = {"boost": boost}
    depth = len(PurePosixPath(page.file.src_uri).parents) - 1

    def inside(link: re.Match[str]) -> str:
        return link["text"] if link["up"].count("../") > depth else link[0]

    markdown = _ROW_CODE.sub(lambda code: code[0].replace(r"\|", "|"), markdown)
    parts, place = [], 0
    for block in _BLOCK.finditer(markdown):
        parts += [_LINK.sub(inside, markdown[place : block.start()]), block[0]]
        place = block.end()
    return "".join([*parts, _LINK.sub(inside, markdown[place:])])
