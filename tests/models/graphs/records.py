"""What a graph of records says, as values that are equal where graphs are."""

from dataclasses import fields
from typing import Any

import numpy as np

from models.graphs.graph import Graph
from models.network.node import Node


def facts(value: Any) -> Any:
    """Return ``value``, a graph or what is in one, as tuples, dictionaries, texts and numbers."""
    match value:
        case Graph() | Node():
            result: Any = {field.name: facts(getattr(value, field.name)) for field in fields(value)}
        case np.ndarray():
            content = value.tolist() if value.dtype == object else value.tobytes()
            result = value.dtype.name, value.shape, content
        case list() | tuple():
            result = getattr(value, "kind", ""), type(value).__name__, tuple(map(facts, value))
        case dict():
            result = {name: facts(item) for name, item in value.items()}
        case float():
            result = value.hex()  # NaN is NaN
        case _:
            result = value
    return result
