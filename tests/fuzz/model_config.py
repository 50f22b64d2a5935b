"""Fuzz the reader of config.pbtxt: ``python -m tests.fuzz.model_config [seconds] [first] [--minutes N]``.

Each example damages a configuration, as text or token by token, and reads it. It is read or refused with
TextFormatError, with a line that it has and a message of bounded length; what protobuf's own reader of
numbers, texts and nesting takes for granted is not compared here (test_text_format.py). Anything else ends
the run with the example's number.
"""

import random
import re
import sys

from server.repository.model_config import model_config
from server.repository.text_format import TextFormatError
from tests.fuzz.pack import chosen_run, run_examples
from tests.server.repository.test_model_config import TRITON

_LONGEST_MESSAGE = 200
_PARTS = re.compile(r"\s+|\w+|.", re.DOTALL)
_ODD = (
    *("{", "}", "<", ">", "[", "]", ":", ";", ",", '"', "'", "\\", "#", "-", ".", "/", "\n", "\0"),
    *("0x", "08", "1e400", "9" * 30, "9" * 5000, "nan", "-inf", "-5", "true", "1.5f", "0xffffffff"),
    *('"\\x"', '"\\ud800"', '"' + "x" * 5000 + '"', "\u202e", "\x1b[0m", "é", "\ud7ff"),
    *("version_policy", "latest { }", "all { }", "specific { versions: 1 }", "max_batch_size: 4"),
    *(
        "name",
        "dynamic_batching { }",
        "preferred_batch_size: 64",
        "sequence_batching { }",
        "{" * 40,
    ),
)


def run(number: int) -> bool:
    """Read one configuration; return whether it was accepted."""
    rng = random.Random(number)
    text = damaged(rng)
    try:
        model_config(text, "net")
    except TextFormatError as exc:
        check(str(exc), exc.line, text)
        return False
    return True


def check(message: str, line: int, text: str) -> None:
    assert message.isprintable(), message
    assert len(message) <= _LONGEST_MESSAGE, message
    assert 1 <= line <= text.count("\n") + 1, line


def damaged(rng: random.Random) -> str:
    """Return a configuration with some of its parts gone, moved, doubled or odd."""
    parts = _PARTS.findall(TRITON)
    for _ in range(rng.randrange(4)):
        place = rng.randrange(len(parts))
        match rng.randrange(4):
            case 0:
                del parts[place]
            case 1:
                parts.insert(place, rng.choice(parts))
            case 2:
                parts[place] = rng.choice(_ODD)
            case _:
                parts.insert(place, f" {rng.choice(_ODD)} ")
    return "".join(parts)


def main(arguments: list[str]) -> int:
    seconds, first = chosen_run(arguments)
    return run_examples(run, seconds, first)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
