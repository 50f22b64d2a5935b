"""What an infer request holds while its tensors come: raw ones their bytes once, text what it takes."""

import gzip
import json
from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
import pytest

from models.packs.records.ports import Port
from pipeline.budget.request_needs import (
    CODEC_BYTES,
    INFLATE_BYTES,
    SHORT_CODEC_BYTES,
    short_infer_bytes,
)
from server.codec.framing import Framing
from server.codec.infer_bodies import named_timeout
from server.codec.messages import ModelRequest, Signature
from server.errors import DisconnectedError, LateError, TooLargeError
from server.memory.request_memory import Lease, RequestMemory
from server.protocol.infer import Check, read_tensors
from server.requests.exchange import BodyLimit, Exchange
from tests.examples import over
from tests.pipeline.synthetic import record

SHAPE = (1, 3, 224, 224)
X = Port(name="x", dtype="float32", shape=SHAPE, value=0)
Y = Port(name="y", dtype="float32", shape=(1, 1000), value=1)
S = Port(name="s", dtype="bytes", shape=(2,), value=0)
ARRAY = np.random.default_rng(0).standard_normal(SHAPE).astype(np.float32)
CHUNK = 16 << 10
MIB = 1 << 20


class Sender:
    """A client that sends ``body`` in chunks; notes what the request holds when each is asked for."""

    def __init__(self, body: bytes, *, leaves: bool = False) -> None:
        self._chunks = [body[start : start + CHUNK] for start in range(0, len(body), CHUNK)] or [
            b""
        ]
        self._leaves = leaves
        self.memory = RequestMemory(16 * MIB)
        self.held: list[int] = []
        self.read = 0

    # What an exchange asks

    owner, arrived_at, expected, declared_bytes = "", None, None, 0
    wants_body = takes_chunks = True

    def connection_bytes(self) -> int | None:
        return None

    @property
    def is_complete(self) -> bool:
        return self.read == len(self._chunks) and not self._leaves

    async def part(self, reads_ahead: bool = False) -> bytes:
        self.held.append(self.memory.used_bytes)
        if self.read == len(self._chunks):
            raise DisconnectedError
        self.read += 1
        return self._chunks[self.read - 1]

    async def send(self, data: bytes, more: bool = False) -> None:
        raise AssertionError(data)

    def start(self, status: int, headers: Sequence[tuple[bytes, bytes]]) -> None:
        raise AssertionError

    def on_leave(self, leaves: Callable[[], None] | None) -> None:
        raise AssertionError

    def abort(self) -> None:
        raise AssertionError

    async def tensors(
        self,
        framing: Framing,
        port: Port = X,
        max_body: int = 4 * MIB,
        check: Check = lambda timeout, n_bytes: None,
    ) -> ModelRequest:
        manifest = replace(record([], []), inputs=(port,), outputs=(Y,))
        lease = Lease(self.memory)
        with Exchange(self, lease, BodyLimit(max_body)) as exchange:
            return await read_tensors(
                exchange, framing, Signature((port,), (Y,)), short_infer_bytes(manifest), check
            )


def text(port: Port, **fields: object) -> bytes:
    kind = "BYTES" if port.dtype == "bytes" else "FP32"
    tensor = {"name": port.name, "shape": list(port.shape), "datatype": kind, **fields}
    return json.dumps({"inputs": [tensor]}).encode()


def raw(port: Port, data: bytes) -> tuple[bytes, Framing]:
    head = text(port, parameters={"binary_data_size": len(data)})
    return head + data, Framing(len(head))


def most(held: Sequence[int]) -> int:
    return max(held) - ARRAY.nbytes


async def test_raw_tensors_hold_their_bytes_and_little_more() -> None:
    body, framing = raw(X, ARRAY.tobytes())
    sender = Sender(body)
    assert (await sender.tensors(framing)).inputs["x"].tobytes() == ARRAY.tobytes()
    assert sender.held[0] == 0  # nothing is taken before more has come than any client may send
    assert most(sender.held) == SHORT_CODEC_BYTES
    assert sender.memory.used_bytes == 0


async def test_text_holds_what_its_values_are_on_their_way() -> None:
    sender = Sender(text(X, data=ARRAY.ravel().tolist()))
    found = await sender.tensors(Framing(), max_body=16 * MIB)
    assert found.inputs["x"].tobytes() == ARRAY.tobytes()
    assert most(sender.held) == CODEC_BYTES


async def test_a_long_text_before_raw_tensors_does_too() -> None:
    head = text(X, parameters={"binary_data_size": ARRAY.nbytes}).ljust(40_000)
    sender = Sender(head + ARRAY.tobytes())
    await sender.tensors(Framing(len(head)))
    assert CODEC_BYTES <= most(sender.held) < CODEC_BYTES + 2 * len(head)


async def test_a_compressed_body_holds_its_window_beside() -> None:
    body, framing = raw(X, ARRAY.tobytes())
    sender = Sender(gzip.compress(body, 1))
    found = await sender.tensors(Framing(framing.json_bytes, "gzip"))
    assert found.inputs["x"].tobytes() == ARRAY.tobytes()
    assert most(sender.held) == SHORT_CODEC_BYTES + INFLATE_BYTES


async def test_a_short_compressed_body_may_open_to_a_long_one() -> None:
    body, framing = raw(X, bytes(ARRAY.nbytes))
    sender = Sender(gzip.compress(body))
    assert sender.memory.capacity_bytes > len(gzip.compress(body))
    await sender.tensors(Framing(framing.json_bytes, "gzip"))
    assert sender.read == 1
    with pytest.raises(TooLargeError, match="opened, is over the limit of 100000 bytes"):
        await Sender(gzip.compress(body)).tensors(
            Framing(framing.json_bytes, "gzip"), max_body=100_000
        )


async def test_what_is_refused_is_not_read() -> None:
    def refuse(timeout: float | None, n_bytes: int) -> float | None:
        raise LateError(f"not within {timeout}", 1.0)

    head = json.loads(text(X, parameters={"binary_data_size": ARRAY.nbytes}))
    partial = json.dumps({**head, "parameters": {"timeout": 50_000}}).encode()
    sender = Sender(partial + ARRAY.tobytes())
    with pytest.raises(LateError, match=r"not within 0\.05"):
        await sender.tensors(Framing(len(partial)), check=refuse)
    # The rest of many is not read, nor waited for with memory; where all is there the check is not called.
    assert sender.read == 2
    assert not any(sender.held)
    assert sender.memory.used_bytes == 0
    await Sender(text(X, data=ARRAY.ravel().tolist())).tensors(
        Framing(), check=refuse, max_body=16 * MIB
    )


async def test_what_has_to_wait_for_memory_is_checked_before_it_does() -> None:
    class WaitsError(Exception):
        pass

    def refuse(timeout: float | None, n_bytes: int) -> float | None:
        raise WaitsError(timeout, n_bytes)

    head = json.loads(text(X, parameters={"binary_data_size": ARRAY.nbytes}))
    partial = json.dumps({**head, "parameters": {"timeout": 50_000}}).encode()
    short = json.dumps({**head, "parameters": {"timeout": 50_000}, "inputs": []}).encode()
    for body, framing in ((partial + ARRAY.tobytes(), Framing(len(partial))), (short, Framing())):
        sender = Sender(body)
        await sender.memory.take(sender.memory.room_bytes, "other")
        with pytest.raises(WaitsError) as caught:
            await sender.tensors(framing, check=refuse)
        timeout, n_bytes = caught.value.args
        assert timeout == 0.05
        assert n_bytes > ARRAY.nbytes


async def test_it_waits_no_longer_than_it_may() -> None:
    body, framing = raw(X, ARRAY.tobytes())
    sender = Sender(body)
    await sender.memory.take(sender.memory.room_bytes, "other")
    with pytest.raises(LateError, match=r"no memory for the request within 0\.001 s"):
        await sender.tensors(framing, check=lambda timeout, n_bytes: 0.001)
    assert sender.memory.waiting == 0
    assert sender.memory.used_bytes == sender.memory.room_bytes


@over(
    "document, seconds",
    [
        ({"parameters": {"timeout": 50_000}}, 0.05),
        ({"parameters": {"timeout": 0}}, None),
        ({"parameters": {"timeout": -1}}, None),
        ({"parameters": {"timeout": 1.5}}, None),
        ({"parameters": {"timeout": "5"}}, None),
        ({"parameters": {"timeout": True}}, None),
        ({"parameters": {"timeout": {}}}, None),
        ({"parameters": []}, None),
        ({"parameters": None}, None),
        ({"outputs": [{"name": "y", "parameters": {"timeout": 5}}]}, None),
        ({"parameters": {"timeout": 10**30}}, None),
        ([], None),
        ("text", None),
        (None, None),
    ],
)
def test_the_timeout_of_what_is_partial(document: object, seconds: float | None) -> None:
    text = json.dumps(document).encode()
    assert named_timeout(text) == seconds
    for end in range(len(text)):  # what is cut off has none
        assert named_timeout(text[:end]) in {None, seconds}


async def test_strings_are_held_as_they_come() -> None:
    strings = [b"a" * 60_000, b"b" * 60_000]
    data = b"".join(len(part).to_bytes(4, "little") + part for part in strings)
    body, framing = raw(S, data)
    sender = Sender(body)
    found = await sender.tensors(framing, S)
    assert [len(each) for each in found.inputs["s"]] == [60_000, 60_000]
    assert max(sender.held) > SHORT_CODEC_BYTES + 100_000


async def test_a_client_that_leaves_has_held_nothing_in_vain() -> None:
    body, framing = raw(X, ARRAY.tobytes())
    sender = Sender(body[:100_000], leaves=True)
    with pytest.raises(DisconnectedError):
        await sender.tensors(framing)
    assert sender.memory.used_bytes == 0
