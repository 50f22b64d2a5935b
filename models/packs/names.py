"""What a model may be called: a name that is a folder, a part of an address and a label, everywhere."""

import re

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")


def is_model_name(text: str) -> bool:
    """Return whether a model may be called ``text``: letters, digits, ``._-``, at most 100."""
    return _NAME.fullmatch(text) is not None
