"""Tokenizers: texts to token ids. The library is imported where the first one is opened.

Only ``encode`` of the library is called: for several texts at once it would start threads of its own.
"""

from pathlib import Path
from typing import Any, Protocol

from models.errors import ModelError, PackError
from models.text.recipe import TextInput, Tokens

#: How to get the library.
INSTALL = "pip install '.[text]' in a clone of Layerstream"
# Words whose tokens it remembers: each costs memory that no figure has. What it saves is next to nothing
# beside a network.
_CACHED_WORDS = 0
# The class of an error after a panic, which no module of the library has.
_PANIC = "PanicException"


class TokenizerError(ModelError):
    """The file of a tokenizer cannot be used."""


class NoLibraryError(TokenizerError):
    """The library that reads tokenizers is not installed."""


class Tokenizer(Protocol):
    """What makes token ids of a text; on any thread."""

    def encode(self, text: str) -> Tokens:
        """Return the tokens of ``text``, as many as the network takes; blocks.

        Raises:
            ValueError: it cannot be tokenised.
        """


def library_tokenizer(path: Path, data: bytes) -> Any:
    """Return the library's tokenizer of the file ``path``, which has these ``data``; blocks.

    Raises:
        TokenizerError: the library is not there, or the file is damaged.
    """
    try:
        import tokenizers
    except ImportError as exc:
        raise NoLibraryError(f"{path}: the library that reads it is missing: {INSTALL}") from exc
    try:
        tokenizer = tokenizers.Tokenizer.from_buffer(data)
    except BaseException as exc:
        raise TokenizerError(
            f"{path}: damaged, or of a kind that is not known: {_reason(exc)}"
        ) from exc
    tokenizer.no_padding()
    tokenizer.no_truncation()
    resize = getattr(tokenizer.model, "_resize_cache", None)
    if resize is not None:
        resize(_CACHED_WORDS)
    return tokenizer


def _reason(exc: BaseException) -> str:
    """Return what the library says of a file or a text; raises ``exc`` where it is not the library's.

    Its own errors are plain Exceptions, and where its code panics a class that is no Exception.
    """
    if not isinstance(exc, Exception) and type(exc).__name__ != _PANIC:
        raise exc
    return str(exc)


class HubTokenizer:
    """The tokenizer of the file ``path``, as Hugging Face's library reads its ``data``, for ``recipe``.

    Raises:
        PackError: it cannot be opened.
    """

    def __init__(self, path: Path, data: bytes, recipe: TextInput) -> None:
        try:
            self._tokenizer = library_tokenizer(path, data)
        except TokenizerError as exc:
            raise PackError(str(exc)) from exc
        try:
            self._tokenizer.enable_truncation(recipe.max_tokens, direction=recipe.cut_side)
        except BaseException as exc:
            raise PackError(f"{path}: {recipe.max_tokens} tokens: {_reason(exc)}") from exc

    def encode(self, text: str) -> Tokens:
        """Return the tokens of ``text``; raises as Tokenizer."""
        try:
            encoding = self._tokenizer.encode(text)
        except BaseException as exc:
            raise ValueError(f"the tokenizer refuses it: {_reason(exc)}") from exc
        return Tokens(encoding.ids, encoding.type_ids, bool(encoding.overflowing))
