"""What it costs to bring a tensor of 600 KB to a model and to take one away: raw and as JSON."""

import time
from collections.abc import Callable
from typing import Any

import numpy as np

from benchmarks.load.messages import (
    Response,
    infer_request,
    mixed_request,
    request_bytes,
    tensors_document,
)
from benchmarks.load.percentiles import summary_ms
from benchmarks.servers.small_models import WIDE_SHAPE

Ask = Callable[[bytes], Response]


def requests() -> dict[str, bytes]:
    """Return requests by name: 600 KB in and little out, or as much out, raw and as JSON."""
    array = np.random.default_rng(0).standard_normal(WIDE_SHAPE).astype(np.float32)
    image = {"name": "image", "shape": WIDE_SHAPE, "datatype": "FP32"}
    text = tensors_document({"image": array})
    raw = {
        "inputs": [{**image, "parameters": {"binary_data_size": array.nbytes}}],
        "parameters": {"binary_data_output": True},
    }
    return {
        "raw in": mixed_request("pooled", raw, array.tobytes()),
        "raw in and out": mixed_request("wide", raw, array.tobytes()),
        "JSON in": infer_request("pooled", text),
        "JSON in and out": infer_request("wide", text),
    }


def overheads(ask: Ask, runs: int) -> dict[str, Any]:
    """Return by request its delay, and the milliseconds of its median that are not the engine's."""
    found = {}
    for name, request in requests().items():
        model = "wide" if "out" in name else "pooled"
        for _ in range(max(runs // 10, 1)):
            _checked(ask(request))
        before = _computed(ask, model)
        delays = [_timed(ask, request) for _ in range(runs)]
        computed = [
            after - earlier for after, earlier in zip(_computed(ask, model), before, strict=True)
        ]
        engine_ms = computed[0] / computed[1] / 1e6
        delay = summary_ms(delays)
        overhead = round(delay["p50_ms"] - engine_ms, 3)
        found[name] = {**delay, "engine_ms": round(engine_ms, 3), "overhead_ms": overhead}
    return found


def _timed(ask: Ask, request: bytes) -> float:
    started = time.perf_counter()
    response = ask(request)
    seconds = time.perf_counter() - started
    _checked(response)
    return seconds


def _checked(response: Response) -> None:
    if response.status != 200:
        raise RuntimeError(f"status {response.status}: {response.body[:200]!r}")


def _computed(ask: Ask, model: str) -> tuple[int, int]:
    """Return nanoseconds that the engine has computed for ``model``, and requests."""
    document = ask(request_bytes("GET", f"/v2/models/{model}/stats")).json()
    figures = document["model_stats"][0]["inference_stats"]["compute_infer"]
    return figures["ns"], figures["count"]
