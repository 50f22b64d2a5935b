"""What Triton's clients may ask that this server has none of: traces, log levels, shared memory.

States are told, since they are true: nothing is traced, no region is registered. Settings take no POST;
registering a region, which is always refused, is in no documentation.
"""

from typing import Any

from server.errors import UnsupportedError
from server.protocol.attending import Asking


async def trace_settings(asked: Asking) -> dict[str, list[str]]:
    """Nothing is traced."""
    return {"trace_level": ["OFF"]}


async def model_trace_settings(asked: Asking, name: str) -> dict[str, list[str]]:
    """Nothing is traced of this model either."""
    await asked.context.repository.described(name)
    return await trace_settings(asked)


async def log_settings(asked: Asking) -> dict[str, bool | int | str]:
    """What is logged: everything but details of requests."""
    return {
        "log_file": "",
        "log_info": True,
        "log_warning": True,
        "log_error": True,
        "log_verbose_level": 0,
        "log_format": "default",
    }


async def regions(asked: Asking, region: str = "") -> list[Any]:
    """None: no shared memory is registered."""
    return []


async def register(asked: Asking, region: str) -> None:
    """501: shared memory is not served."""
    raise UnsupportedError("shared memory is not served; send tensors as binary data")


async def unregister(asked: Asking, region: str = "") -> dict[str, Any]:
    """Nothing happens: no shared memory is registered."""
    return {}
