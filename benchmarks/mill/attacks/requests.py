"""Requests that attacks start from: valid ones to each model, and heads without their bodies."""

import json
from functools import cache
from typing import Any

from benchmarks.load.messages import infer_request
from benchmarks.servers.small_models import TINY_SHAPE, WIDE_SHAPE

WIDE_VALUES = 3 * 224 * 224


@cache
def tiny_request() -> bytes:
    """Return a valid request to ``tiny``."""
    return infer_request("tiny", tiny_document())


def tiny_document(**changes: Any) -> dict[str, Any]:
    """Return a valid document for ``tiny``, whose tensor has ``changes``."""
    tensor = {"name": "x", "shape": TINY_SHAPE, "datatype": "FP32", "data": [0.5] * 16}
    return {"inputs": [tensor | changes]}


@cache
def wide_body() -> bytes:
    """Return a valid body for ``wide``: 3 MB of numbers."""
    data = ",".join(f"0.{index:018d}" for index in range(WIDE_VALUES))
    shape = json.dumps(WIDE_SHAPE)
    tensor = f'{{"name":"image","shape":{shape},"datatype":"FP32","data":[{data}]}}'
    return f'{{"inputs":[{tensor}]}}'.encode()


def head(
    length: object,
    path: str = "/v2/models/wide/infer",
    kind: str = "application/json",
    *more: str,
) -> bytes:
    """Return the head of a POST that announces ``length``, whatever that is."""
    lines = [f"POST {path} HTTP/1.1", "Host: localhost", f"Content-Type: {kind}"]
    lines += [f"Content-Length: {length}", *more]
    return ("\r\n".join(lines) + "\r\n\r\n").encode("latin-1")


def post(body: bytes, path: str = "/v2/models/tiny/infer", kind: str = "application/json") -> bytes:
    """Return a POST of ``body``."""
    return head(len(body), path, kind) + body
