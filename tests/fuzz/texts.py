"""Fuzz what is read of texts: ``python -m tests.fuzz.texts [seconds] [first] [--minutes N]``.

Each example damages the files next to a tokenizer and reads them, and a body of OpenAI's endpoint. Files
say something, or a reason of bounded length why not. A body takes no more memory than was held for it, and
is read, or refused in a short line.
"""

import json
import random
import sys
import tempfile
from pathlib import Path
from typing import Any

import orjson
from pydantic import ValidationError

from models.compiler.writing.text_config import read_text_config
from models.text.files import companions
from server.codec.messages import first_error, parsed_object
from server.errors import InvalidRequestError
from server.protocol.openai import EmbeddingsRequest, Inputs
from server.protocol.texts import MAX_TEXTS, parsed_bytes
from tests.fuzz.pack import change_bytes, chosen_run, run_examples
from tests.models.texts import write_files

_LONGEST = 300
_ODD: tuple[Any, ...] = (
    *(None, True, False, 0, 1, -1, 1.5, 10**30, -(10**30), "", "x" * 5000, "..", "/etc", "mean"),
    *([], {}, [[]], {"content": 1}, ["a", 1], [1, 2], [[1], []], [["a"]], "a\u0301\U0001f600"),
)
_SOUND: dict[str, Any] = {
    "tokenizer_config": {
        "pad_token": "[PAD]",
        "model_max_length": 512,
        "padding_side": "left",
        "truncation_side": "right",
    },
    "config": {"max_position_embeddings": 512, "pad_token_id": 0, "model_type": "bert"},
    "sentence_bert_config": {"max_seq_length": 128, "do_lower_case": False},
    "config_sentence_transformers": {
        "prompts": {"query": "Ask: "},
        "default_prompt_name": "query",
        "truncate_dim": 4,
    },
}
_FILES = ("modules.json", "1_Pooling/config.json", *(f"{name}.json" for name in _SOUND))


def run(seed: int) -> bool:
    """Read one folder and one body; return whether both were accepted."""
    rng = random.Random(seed)
    with tempfile.TemporaryDirectory() as folder:
        accepted = read_files(Path(folder), rng)
    return read_body(rng) and accepted


def read_files(folder: Path, rng: random.Random) -> bool:
    tokenizer = write_files(folder, **_SOUND)
    for name in rng.sample(_FILES, rng.randrange(3)):
        file = folder / name
        if rng.random() < 0.3:
            file.write_bytes(change_bytes(file.read_bytes(), rng))
        else:
            file.write_text(json.dumps(changed(rng, json.loads(file.read_text()))))
    companions(tokenizer)
    config = read_text_config(tokenizer)
    for reason in config.reasons:
        assert len(reason.replace(str(folder), "")) <= _LONGEST, reason
    assert config.max_tokens is None or config.max_tokens > 0
    return not config.reasons


def changed(rng: random.Random, value: Any) -> Any:
    """Return ``value`` with something in it odd, gone, or twice."""
    if isinstance(value, dict) and value and rng.random() < 0.8:
        key = rng.choice([*value])
        return {**value, key: changed(rng, value[key])}
    if isinstance(value, list) and value and rng.random() < 0.8:
        index = rng.randrange(len(value))
        return [*value[:index], changed(rng, value[index]), *value[index + rng.randrange(2) :]]
    return rng.choice(_ODD)


def read_body(rng: random.Random) -> bool:
    body = orjson.dumps(drawn(rng))
    if rng.random() < 0.3:
        body = change_bytes(body, rng)
    try:
        n_bytes = parsed_bytes(body)
        document = parsed_object(body)
        assert size_of(document) <= n_bytes, (size_of(document), n_bytes, body[:200])
        request = EmbeddingsRequest.model_validate(document)
    except InvalidRequestError as exc:
        return check(str(exc))
    except ValidationError as exc:
        return check(first_error(exc.errors()))
    assert isinstance(request.input, Inputs)
    assert 0 < len(request.input.items) <= MAX_TEXTS
    for item in request.input.items:
        assert isinstance(item, str) or {*map(type, item)} == {int}
    return True


def check(message: str) -> bool:
    assert message.isprintable(), message
    assert len(message) <= _LONGEST, message
    return False


def drawn(rng: random.Random) -> dict[str, Any]:
    texts = ["", "a", "two words", "é" * 9, "\U0001f600a" * 30, '"[{,\\' * 9, "x" * 3000]
    kinds: list[Any] = [
        rng.choice(texts),
        rng.choices(texts, k=rng.randrange(40)),
        [rng.randrange(10**6) for _ in range(rng.randrange(60))],
        [[rng.randrange(300) for _ in range(rng.randrange(5))] for _ in range(rng.randrange(9))],
        [[]] * rng.choice((3, 2500)),
        rng.choice(_ODD[:6]),
    ]
    body = {"model": "m", "input": rng.choice(kinds)}
    if rng.random() < 0.3:
        body[rng.choice(("dimensions", "encoding_format", "model", "user"))] = rng.choice(_ODD[:6])
    return body


def size_of(value: Any) -> int:
    """Return what ``value`` takes in memory, with all that is in it."""
    if isinstance(value, dict):
        return sys.getsizeof(value) + sum(
            size_of(key) + size_of(item) for key, item in value.items()
        )
    if isinstance(value, list):
        return sys.getsizeof(value) + sum(map(size_of, value))
    return sys.getsizeof(value)


def main(arguments: list[str]) -> int:
    seconds, first = chosen_run(arguments)
    return run_examples(run, seconds, first)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
