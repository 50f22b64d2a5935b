"""What users call devices, kinds of memory and precisions; no device is imported for it."""

import re
from typing import Literal, get_args

#: How streamed weights reach the kernels of ``auto``. Pipelines of three stages copy whatever the kind is,
#: other ones of two stages are mapped where it is ``copied``.
Kind = Literal["copied", "mapped", "managed"]
#: What convolutions multiply: float32, or float16 on tensor cores with float32 sums. Memory holds float32.
Precision = Literal["fp32", "fp16"]

KINDS = get_args(Kind)
PRECISIONS = get_args(Precision)

_NAME = re.compile(r"cpu|cuda(?::([0-9]{1,3}))?")


def check_name(name: str) -> str:
    """Return ``name``.

    Raises:
        ValueError: it is no device's.
    """
    if not _NAME.fullmatch(name):
        raise ValueError(f"unknown device {name!r}; there are cpu, cuda, cuda:0, cuda:1, ...")
    return name


def gpu_number(name: str) -> int | None:
    """Return which GPU the device ``name`` is; None: it is the CPU.

    Raises:
        ValueError: it is no device's.
    """
    match = _NAME.fullmatch(check_name(name))
    assert match is not None
    return None if name == "cpu" else int(match[1] or 0)
