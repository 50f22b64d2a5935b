"""What Triton's clients may ask that this server has none of: traces, log levels, shared memory.

States are told, since they are true: nothing is traced, no region is registered. Settings take no POST;
registering a region, which is always refused, is in no documentation.
"""

from typing import Any

from fastapi import APIRouter

from server.errors import UnsupportedError
from server.protocol.serving import ContextDependency

router = APIRouter(tags=["not served"])

_KINDS = ("system", "cuda")


@router.get("/v2/trace/setting")
async def trace_settings() -> dict[str, list[str]]:
    """Nothing is traced."""
    return {"trace_level": ["OFF"]}


@router.get("/v2/models/{name}/trace/setting")
async def model_trace_settings(context: ContextDependency, name: str) -> dict[str, list[str]]:
    """Nothing is traced of this model either."""
    context.repository.get(name)
    return await trace_settings()


@router.get("/v2/logging")
async def log_settings() -> dict[str, bool | int | str]:
    """What is logged: everything but details of requests."""
    return {
        "log_file": "",
        "log_info": True,
        "log_warning": True,
        "log_error": True,
        "log_verbose_level": 0,
        "log_format": "default",
    }


async def regions(region: str = "") -> list[Any]:
    """None: no shared memory is registered."""
    return []


async def register(region: str) -> None:
    """501: shared memory is not served."""
    raise UnsupportedError("shared memory is not served; send tensors as binary data")


async def unregister(region: str = "") -> dict[str, Any]:
    """Nothing happens: no shared memory is registered."""
    return {}


for _kind in _KINDS:
    _root = f"/v2/{_kind}sharedmemory"
    for _place in ("", "/region/{region}"):
        router.add_api_route(f"{_root}{_place}/status", regions, methods=["GET"])
        router.add_api_route(f"{_root}{_place}/unregister", unregister, methods=["POST"])
    _place = f"{_root}/region/{{region}}/register"
    router.add_api_route(_place, register, methods=["POST"], include_in_schema=False)
