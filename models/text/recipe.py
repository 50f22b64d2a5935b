"""How a text becomes the inputs of a network: token ids, and what goes with them.

A network takes as many tokens as it was compiled for. A shorter text is padded, and a mask says where it
ends; a longer one is cut, and the answer says so. Before a long text is tokenised at all, it is cut to
what can fill the network (``TextInput.cuts``): what tokenising takes grows with the text.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from models.network.fields import Array, Count
from models.records import PositiveInt, Record

Side = Literal["left", "right"]

#: Names of inputs as transformers has them: token ids, 1 where there is a token, which of two texts it is
#: of, and how many are before it.
IDS, MASK, TYPES, POSITIONS = "input_ids", "attention_mask", "token_type_ids", "position_ids"
ROLES = (IDS, MASK, TYPES, POSITIONS)

# Tokenising took up to 760 bytes for each of a text's (a Unigram after NFKC, of Arabic ligatures; 560 of
# spaces, 230 to 430 of words), in tokenizers 0.23.
_WORK_BYTES = 768
# Bytes of a text for each token of the network: so many are tried first, and so many at most. Of English
# a token has 4 to 6, and of spaces or of words without a token any number.
_USUAL_BYTES, _MAX_BYTES = 16, 128
_MIN_CUT_BYTES = 1024


class Tokens(NamedTuple):
    """The tokens of a text, special ones among them, not padded.

    ``types``: which of two texts each is of. ``is_cut``: the text has more of them.
    """

    ids: Sequence[int]
    types: Sequence[int]
    is_cut: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class TextInput(Record):
    """How texts become the inputs of a network, and what that takes.

    ``max_tokens``: of one text, special tokens among them. ``vocabulary``: token ids are below it.
    ``pad_id``: what stands where there is no token. ``prompt``: it comes before every text.
    ``memory_bytes``: what the tokenizer takes at most, while it is loaded and later.
    """

    max_tokens: PositiveInt
    vocabulary: PositiveInt
    memory_bytes: Count
    pad_id: Count = 0
    pad_side: Side = "right"
    cut_side: Side = "right"
    lowercase: bool = False
    prompt: str = ""

    def prepared(self, text: str) -> str:
        """Return ``text`` as the tokenizer gets it."""
        text = f"{self.prompt}{text}"
        return text.lower() if self.lowercase else text

    def cuts(self, n_bytes: int) -> Iterator[int]:
        """Yield how many bytes of a text of ``n_bytes`` are tried, one after the other."""
        cut_bytes = max(_USUAL_BYTES * self.max_tokens, _MIN_CUT_BYTES)
        last_bytes = min(n_bytes, self.max_bytes)
        while cut_bytes < last_bytes:
            yield cut_bytes
            cut_bytes *= 2
        yield last_bytes

    @property
    def max_bytes(self) -> int:
        """The most of a text that is tokenised."""
        return max(_MAX_BYTES * self.max_tokens, _MIN_CUT_BYTES)

    def cut(self, text: str, n_bytes: int) -> str:
        """Return at most ``n_bytes`` of ``text``, between two words where there are any."""
        data = text.encode()
        if len(data) <= n_bytes:
            return text
        if self.cut_side == "left":
            rest = data[-n_bytes:].decode(errors="ignore")
            start = rest.find(" ")
            return rest[start:] if 0 <= start < len(rest) // 2 else rest
        rest = data[:n_bytes].decode(errors="ignore")
        end = rest.rfind(" ")
        return rest[:end] if end > len(rest) // 2 else rest

    @property
    def usual_work_bytes(self) -> int:
        """What tokenising a text that fills the network takes."""
        return work_bytes(max(_USUAL_BYTES * self.max_tokens, _MIN_CUT_BYTES))


def work_bytes(n_bytes: int) -> int:
    """Return what tokenising a text of ``n_bytes`` takes at most."""
    return _WORK_BYTES * n_bytes


def text_inputs(
    recipe: TextInput, inputs: Mapping[str, Array], tokens: Tokens
) -> dict[str, NDArray[Any]]:
    """Return the arrays of ``inputs``, [1, tokens of the network], for the ``tokens`` of a text."""
    count = len(tokens.ids)
    values: Mapping[str, Sequence[int]] = {
        IDS: tokens.ids,
        MASK: [1] * count,
        TYPES: tokens.types,
        POSITIONS: range(count),
    }
    arrays = {}
    for name in inputs.keys() & values.keys():
        array = np.full(inputs[name].shape, recipe.pad_id if name == IDS else 0, inputs[name].dtype)
        row = array[0]
        filled = row[:count] if recipe.pad_side == "right" else row[len(row) - count :]
        filled[...] = values[name]
        arrays[name] = array
    return arrays


def token_mask(recipe: TextInput, length: int, count: int) -> NDArray[np.bool_]:
    """Return which of ``length`` tokens of the network are of a text of ``count`` tokens."""
    positions = np.arange(length)
    return positions < count if recipe.pad_side == "right" else positions >= length - count


def inputs_fault(inputs: Mapping[str, Array]) -> str | None:
    """Return why a text does not become ``inputs``, those that must be given; None: it does."""
    if IDS not in inputs:
        return f"the network has no input {IDS!r}"
    shape = inputs[IDS].shape
    for name, array in inputs.items():
        if name not in ROLES:
            return f"the network takes {name!r}, too, which is none of {', '.join(ROLES)}"
        is_row = len(array.shape) == 2 and array.shape[0] == 1 and array.shape[1] > 0
        if array.dtype not in ("int64", "int32") or array.shape != shape or not is_row:
            return (
                f"input {name!r} is {array.dtype}{list(array.shape)}, not int64 or int32 [1, tokens] "
                f"as {IDS!r}"
            )
    return None


def text_fault(recipe: TextInput, inputs: Mapping[str, Array]) -> str | None:
    """Return why a text does not become ``inputs`` as ``recipe`` says; None: it does."""
    if fault := inputs_fault(inputs):
        return f"text: {fault}"
    length = inputs[IDS].shape[1]
    if recipe.max_tokens > length:
        return f"text: {recipe.max_tokens} tokens, of a network that takes {length}"
    if recipe.pad_id >= recipe.vocabulary:
        return f"text: pad_id {recipe.pad_id}, of a vocabulary of {recipe.vocabulary}"
    return None
