"""The table of requests in docs/reference/http.md, of the routes."""

import re
from collections.abc import Sequence
from inspect import cleandoc
from typing import Any

from fastapi.dependencies.models import Dependant
from starlette.routing import BaseRoute

from server.protocol.routing import Route

_PART = re.compile(r"\{(\w+)\}")
_PLACES = {"{name}": "NAME", "{version}": "V", "{region}": "REGION"}
_OPTIONS = ("/versions/{version}", "/region/{region}")
_ADMITTED = {
    "open": "everybody",
    "metrics": "key, or everybody",
    "form": "key, also in the form",
    "infer": "key",
    "admin": "admin",
}


def requests_table(routes: Sequence[BaseRoute]) -> str:
    """Return the table of requests of docs/reference/http.md."""
    documented = [route for route in routes if isinstance(route, Route) and route.include_in_schema]
    lines = dict.fromkeys(_line(route, documented) for route in documented)
    return "\n".join(["| request | who | |", "|---|---|---|", *lines]) + "\n"


def _line(route: Route, others: Sequence[Route]) -> str:
    path = route.path
    for option in _OPTIONS:
        longer = [other.path for other in others if other.path.replace(option, "") == path]
        if option in path or len(longer) > 1:
            path = max(longer, default=path, key=len).replace(option, f"[{option}]")
    path = _PART.sub(lambda part: _PLACES[part[0]], path)
    query = "&".join(_query(route.dependant))
    method = "".join(route.methods or ())
    asked = f"{method} {path}{'?' if query else ''}{query}"
    said = cleandoc(route.endpoint.__doc__ or "").partition("\n")[0].replace("``", "`")
    return f"| `{asked}` | {_ADMITTED[route.rules.admitted]} | {said} |"


def _query(dependant: Dependant) -> list[str]:
    fields: Any = [parameter.field_info.annotation for parameter in dependant.query_params]
    return [name for model in fields for name in model.model_fields]
