"""How a refusal must look: exactly this error, one line, and the file and field in it."""

import contextlib
from collections.abc import Iterator

import pytest


@contextlib.contextmanager
def refuses(error: type[Exception], *parts: object) -> Iterator[None]:
    """Expect ``error`` itself, no subclass, with one line that contains all ``parts``."""
    with pytest.raises(error) as caught:
        yield
    message = str(caught.value)
    assert type(caught.value) is error, repr(caught.value)
    assert message.isprintable(), repr(message)
    for part in parts:
        assert str(part) in message, f"{part!r} is not in {message!r}"
