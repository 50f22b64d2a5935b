"""A tokenizer without a file or a library, for tests: a word is a token."""

import zlib

from models.text.recipe import TextInput, Tokens

#: What begins and ends a text.
BEGIN, END = 1, 2
_FIRST = 3


class WordTokenizer:
    """Each word has an id by its checksum; ``recipe``: how many tokens there may be, and which ids."""

    def __init__(self, recipe: TextInput) -> None:
        self._recipe = recipe
        #: What was tokenised.
        self.texts: list[str] = []

    def encode(self, text: str) -> Tokens:
        """Return a token for each word of ``text``, between two special ones."""
        self.texts.append(text)
        words = [self._id(word) for word in text.split()]
        max_words = self._recipe.max_tokens - 2
        used = words[:max_words] if self._recipe.cut_side == "right" else words[-max_words:]
        ids = [BEGIN, *used, END]
        return Tokens(ids, [0] * len(ids), len(words) > max_words)

    def _id(self, word: str) -> int:
        return _FIRST + zlib.crc32(word.encode()) % (self._recipe.vocabulary - _FIRST)
