"""What the files next to a tokenizer say: of transformers its limits, of sentence-transformers the vector.

``tokenizer_config.json`` and ``config.json`` of transformers, ``sentence_bert_config.json``,
``config_sentence_transformers.json``, ``modules.json`` and ``1_Pooling/config.json`` of
sentence-transformers. What changes a vector in a way for which there is no recipe is a reason to have none.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

from models.embedding import Pooling
from models.text.files import (
    CONFIG,
    MODULE_CONFIG,
    MODULES,
    PROMPTS,
    SENTENCE_CONFIG,
    TOKENIZER_CONFIG,
    quoted,
    read_modules,
    read_object,
)
from models.text.measuring import TokenizerFacts, measured
from models.text.recipe import Side

# transformers writes 10 ** 30 where there is none.
_NO_LIMIT = 1 << 24
_SIDES = ("left", "right")
_POOLINGS: Mapping[str, Pooling] = {
    "cls": "cls",
    "max": "max",
    "mean": "mean",
    "lasttoken": "last",
}
# As sentence-transformers wrote it before its version 5.
_FORMER = {
    "pooling_mode_cls_token": "cls",
    "pooling_mode_max_tokens": "max",
    "pooling_mode_mean_tokens": "mean",
    "pooling_mode_mean_sqrt_len_tokens": "mean_sqrt_len_tokens",
    "pooling_mode_weightedmean_tokens": "weightedmean",
    "pooling_mode_lasttoken": "lasttoken",
}
# Models of transformers whose first token is not at position 0.
_SHIFTED = ("roberta", "camembert", "mpnet", "longformer", "data2vec-text", "ibert")
#: Measures a tokenizer: its file, and the token whose id is asked for.
Measuring = Callable[[Path, str | None], TokenizerFacts]


@dataclass(frozen=True)
class PooledVector:
    """What modules make of the vectors of tokens."""

    pooling: Pooling
    normalise: bool
    dimensions: int | None


@dataclass(frozen=True)
class TextConfig:
    """What the files next to ``tokenizer`` say; what they do not say is None or empty.

    ``shifted``: positions do not begin at 0. ``origins``: the file that each of them is of.
    ``reasons``: why there is no ``vector`` though there are modules, or a file is no such file.
    """

    tokenizer: Path
    max_tokens: int | None = None
    pad_token: str | None = None
    pad_id: int | None = None
    pad_side: Side = "right"
    cut_side: Side = "right"
    lowercase: bool = False
    prompt: str = ""
    shifted: bool = False
    vector: PooledVector | None = None
    origins: Mapping[str, str] = field(default_factory=dict)
    reasons: tuple[str, ...] = ()
    measure: Measuring = measured


def read_text_config(tokenizer: Path, measure: Measuring = measured) -> TextConfig:
    """Return what the files next to ``tokenizer`` say; one that is wrong says nothing, and the reason."""
    reasons: list[str] = []

    def read(name: str) -> dict[str, Any]:
        try:
            return read_object(tokenizer.with_name(name))
        except ValueError as exc:
            reasons.append(str(exc))
            return {}

    tokenizer_config, config, sentence, prompts = map(
        read, (TOKENIZER_CONFIG, CONFIG, SENTENCE_CONFIG, PROMPTS)
    )
    origins = {"tokenizer": tokenizer.name}
    max_tokens, limit_file = _limit(tokenizer_config, config, sentence)
    if max_tokens is not None:
        origins["max_tokens"] = limit_file
    padding = _padding(tokenizer, read)
    pad_token = tokenizer_config.get("pad_token")
    if isinstance(pad_token, dict):
        pad_token = pad_token.get("content")
    pad_id = next(filter(_is_count, (padding.get("pad_id"), config.get("pad_token_id"))), None)
    prompt = _prompt(prompts, reasons)
    if prompt:
        origins["prompt"] = PROMPTS
    vector = None
    try:
        vector = _vector(tokenizer.parent, bool(prompt), prompts.get("truncate_dim"))
    except ValueError as exc:
        reasons.append(str(exc))
    if vector is not None:
        origins["embedding"] = MODULES
    model_type = config.get("model_type")
    return TextConfig(
        tokenizer,
        max_tokens,
        pad_token if isinstance(pad_token, str) else None,
        pad_id,
        _side(tokenizer_config.get("padding_side") or padding.get("direction")),
        _side(tokenizer_config.get("truncation_side")),
        sentence.get("do_lower_case") is True,
        prompt,
        isinstance(model_type, str) and any(name in model_type for name in _SHIFTED),
        vector,
        origins,
        tuple(reasons),
        measure,
    )


def _is_count(value: object) -> bool:
    return type(value) is int and value >= 0


def _side(value: object) -> Side:
    word = value.lower() if isinstance(value, str) else ""
    return cast("Side", word) if word in _SIDES else "right"


def _limit(
    tokenizer_config: Mapping[str, Any], config: Mapping[str, Any], sentence: Mapping[str, Any]
) -> tuple[int | None, str]:
    """Return the most tokens of a text and the file that says it, as sentence-transformers has it."""
    limit = sentence.get("max_seq_length")
    if _is_limit(limit):
        return limit, SENTENCE_CONFIG
    limits = [(tokenizer_config.get("model_max_length"), TOKENIZER_CONFIG)]
    limits += [(config.get("max_position_embeddings"), CONFIG)]
    limits = [(limit, name) for limit, name in limits if _is_limit(limit)]
    return min(limits, default=(None, ""))


def _is_limit(value: object) -> bool:
    return isinstance(value, int) and 0 < value < _NO_LIMIT and not isinstance(value, bool)


def _padding(tokenizer: Path, read: Callable[[str], dict[str, Any]]) -> dict[str, Any]:
    """Return what the tokenizer itself says of padding; its file is read by its library alone, if large."""
    try:
        if tokenizer.stat().st_size > _SMALL_BYTES:
            return {}
    except OSError:
        return {}
    padding = read(tokenizer.name).get("padding")
    return padding if isinstance(padding, dict) else {}


# Parsing takes ten times the file; a larger one has a tokenizer_config.json next to it.
_SMALL_BYTES = 4 << 20


def _prompt(prompts: Mapping[str, Any], reasons: list[str]) -> str:
    """Return the prompt that comes before every text."""
    name, by_name = prompts.get("default_prompt_name"), prompts.get("prompts")
    if name is None:
        return ""
    prompt = by_name.get(name) if isinstance(by_name, dict) and isinstance(name, str) else None
    if not isinstance(prompt, str):
        reasons.append(f"{PROMPTS}: there is no prompt {quoted(name)}")
        return ""
    return prompt


def _vector(folder: Path, has_prompt: bool, dimensions: object) -> PooledVector | None:
    """Return what the modules in ``folder`` make of tokens; None: there are none.

    Raises:
        ValueError: there is no recipe that does the same.
    """
    modules = read_modules(folder / MODULES)
    if not modules:
        return None
    kinds = [kind for kind, _ in modules]
    usual = ["Transformer", "Pooling", "Normalize"]
    if kinds not in (usual, usual[:2]):
        raise ValueError(f"{folder / MODULES}: {quoted(kinds)}: no recipe does what they do")
    path = folder / modules[1][1] / MODULE_CONFIG
    config = read_object(path)
    if not config:
        raise ValueError(f"{path}: missing")
    if has_prompt and config.get("include_prompt") is False:
        raise ValueError(f"{path}: include_prompt: no recipe leaves a prompt out")
    former = [mode for key, mode in _FORMER.items() if config.get(key) is True]
    mode = config.get("pooling_mode", former or "mean")
    if isinstance(mode, list) and len(mode) == 1:
        (mode,) = mode
    if not isinstance(mode, str) or mode not in _POOLINGS:
        raise ValueError(f"{path}: pooling {quoted(mode)}: no recipe has it")
    count = dimensions if isinstance(dimensions, int) and _is_limit(dimensions) else None
    return PooledVector(_POOLINGS[mode], kinds == usual, count)
