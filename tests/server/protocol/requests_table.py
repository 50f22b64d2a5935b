"""The table of requests in docs/reference/http.md, of the table of routes."""

import re
from inspect import cleandoc

from server.protocol.routing import Table

_PART = re.compile(r"\{(\w+)\}")
_PLACES = {"{name}": "NAME", "{version}": "V", "{region}": "REGION"}
_ADMITTED = {
    "open": "everybody",
    "metrics": "key, or everybody",
    "form": "key, also in the form",
    "infer": "key",
    "admin": "admin",
}


def requests_table(table: Table) -> str:
    """Return the table of requests of docs/reference/http.md."""
    lines = ["| request | who | |", "|---|---|---|"]
    for route in table.routes:
        if route.group:
            path = _PART.sub(lambda part: _PLACES[part[0]], route.path)
            query = "&".join(route.query.model_fields) if route.query else ""
            asked = f"{route.method} {path}{'?' if query else ''}{query}"
            said = cleandoc(route.answer.__doc__ or "").partition("\n")[0].replace("``", "`")
            lines.append(f"| `{asked}` | {_ADMITTED[route.admitted]} | {said} |")
    return "\n".join(lines) + "\n"
