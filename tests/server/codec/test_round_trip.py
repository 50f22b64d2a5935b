"""What ``tritonclient`` sends is decoded, and it reads what is encoded: every datatype, raw and JSON."""

import random
from typing import Any

import numpy as np
from numpy.typing import NDArray
from tritonclient.http import InferResult

from models.packs.records.ports import Port
from server.codec.datatypes import DATATYPES
from server.codec.framing import Coding, Framing
from server.codec.infer_bodies import Body, BodyDecoder
from server.codec.messages import ModelAnswer, Output, Signature, WantedOutput
from server.codec.raw import PIECE_BYTES
from tests.examples import over
from tests.fuzz.infer import decoded
from tests.server.clients.messages import body, output, plain, strings, tensor
from tests.server.codec.infer_cases import OUTPUTS

SHAPES = [(), (1,), (2, 3), (4, 1, 2), (0,), (2, 0), (7, 30)]
TEXTS = ["", "a", 'ä€😀"', "\0\n", "x" * 900]


def draw_array(rng: random.Random, dtype: str, *, finite: bool = False) -> NDArray[Any]:
    shape = rng.choice(SHAPES)
    size = int(np.prod(shape))
    if dtype == "bytes":
        return strings(*(rng.choice(TEXTS) for _ in range(size))).reshape(shape)
    bits = np.frombuffer(rng.randbytes(size * np.dtype(dtype).itemsize), dtype)
    if dtype == "bool":
        bits = bits.view(np.uint8) % 2 == 1
    if finite and bits.dtype.kind == "f":
        bits = np.where(np.isfinite(bits), bits, np.array(0, dtype))
    return bits.reshape(shape)


def draw_arrays(
    rng: random.Random,
) -> list[tuple[str, NDArray[Any], bool]]:
    """Up to four arrays, each with a name, and whether it goes as raw bytes."""
    found = []
    for number in range(rng.randint(1, 4)):
        is_raw = rng.random() < 0.6
        array = draw_array(rng, rng.choice(list(DATATYPES.values())), finite=not is_raw)
        found.append((f"t{number}", array, is_raw))
    return found


@over("number", range(25))
def test_requests_of_the_client_are_understood(number: int) -> None:
    rng = random.Random(number)
    drawn = draw_arrays(rng)
    ports = [
        Port(name=name, dtype=dtype_of(array), shape=array.shape, value=0)
        for name, array, _ in drawn
    ]
    asked = [output(name, rng.random() < 0.5, rng.randrange(3)) for name in "zy"]
    text, json_bytes = body(
        [tensor(*each) for each in drawn], rng.choice((None, asked)), request_id="7", priority=2
    )
    coding: Coding = rng.choice(("identity", "gzip", "deflate"))
    found = decoded(rng, text, Framing(json_bytes, coding), ports)
    assert found.id == "7"
    assert {wanted.name for wanted in found.wanted} == {"y", "z"}
    for name, array, _ in drawn:
        assert plain(found.inputs[name]) == plain(array)


def dtype_of(array: NDArray[Any]) -> str:
    return "bytes" if array.dtype == object else array.dtype.name


@over("number", range(25))
def test_answers_are_read_by_the_client(number: int) -> None:
    rng = random.Random(number)
    drawn = draw_arrays(rng)
    answer = ModelAnswer("m", "1", "7", [Output(*each) for each in drawn])
    made = Body(answer)
    raw = list(made.raw())
    text = b"".join(made.text())
    assert sum(map(len, raw)) == made.raw_bytes
    assert max(map(len, raw), default=0) <= PIECE_BYTES
    assert made.is_mixed == any(is_raw for _, _, is_raw in drawn)
    length = str(len(text)) if made.is_mixed else None
    found = InferResult.from_response_body(text + b"".join(raw), header_length=length)
    assert found.get_response()["id"] == "7"
    for name, array, _ in drawn:
        assert plain(found.as_numpy(name)) == plain(array)


def test_large_outputs_go_in_pieces() -> None:
    array = np.random.default_rng(0).standard_normal((100, 1000)).astype(np.float32).T
    texts = strings(*("ab" * 100 for _ in range(2000)))
    made = Body(ModelAnswer("m", "1", None, [Output("y", array, True), Output("s", texts, True)]))
    raw = list(made.raw())
    assert max(map(len, raw)) <= PIECE_BYTES
    assert b"".join(raw)[:400_000] == array.tobytes()
    assert made.raw_bytes == 400_000 + 204 * 2000


def test_wanted_is_what_the_client_asks_for() -> None:
    port = Port(name="x", dtype="float32", shape=(1,), value=0)
    x = tensor("x", np.zeros(1, np.float32))
    for asked, wanted in (
        (None, (WantedOutput("y", True), WantedOutput("z", True))),
        ([output("z", False)], (WantedOutput("z"),)),
        (
            [output("z", True, 5), output("y")],
            (WantedOutput("z", True, 5), WantedOutput("y", True)),
        ),
    ):
        text, json_bytes = body([x], asked)
        decoder = BodyDecoder(Framing(json_bytes), Signature([port], OUTPUTS))
        decoder.feed(text)
        assert decoder.finish().wanted == wanted
