"""A hook of MkDocs: on the site a link that leaves docs/ is plain text; in a clone it leads to the file."""

import re
from pathlib import PurePosixPath
from typing import Any

_BLOCK = re.compile(r"^```.*?^```\s*$", re.MULTILINE | re.DOTALL)
_LINK = re.compile(r"\[(?P<text>[^\]]*)\]\((?P<up>(?:\.\./)+)[^)\s]*\)")


def on_page_markdown(markdown: str, *, page: Any, **_: Any) -> str:
    """Return ``markdown`` without links to files that are not below docs/; blocks stay as they are."""
    depth = len(PurePosixPath(page.file.src_uri).parents) - 1

    def inside(link: re.Match[str]) -> str:
        return link["text"] if link["up"].count("../") > depth else link[0]

    parts, place = [], 0
    for block in _BLOCK.finditer(markdown):
        parts += [_LINK.sub(inside, markdown[place : block.start()]), block[0]]
        place = block.end()
    return "".join([*parts, _LINK.sub(inside, markdown[place:])])
