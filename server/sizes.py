"""Sizes as people write them: 256MiB, 24 MB, 1048576."""

from typing import Annotated

from pydantic import ByteSize, Field, TypeAdapter, ValidationError

Size = Annotated[ByteSize, Field(gt=0)]
_ADAPTER: TypeAdapter[ByteSize] = TypeAdapter(Size)


def parse_size(text: str) -> int:
    """Return the bytes that ``text`` names.

    Raises:
        ValueError: it is not a positive size.
    """
    try:
        return int(_ADAPTER.validate_python(text))
    except ValidationError as exc:
        raise ValueError(
            f"{text!r} is not a size; write 256MiB, 24MB or a number of bytes"
        ) from exc


def format_size(n_bytes: int) -> str:
    """Return ``n_bytes`` for people: 1.5 MiB."""
    if n_bytes < 1 << 10:
        return f"{n_bytes} B"
    for unit, factor in (("KiB", 1 << 10), ("MiB", 1 << 20)):
        if n_bytes < factor << 10:
            return f"{n_bytes / factor:.1f} {unit}"
    return f"{n_bytes / (1 << 30):.2f} GiB"
