"""What a client of gRPC sends that is no call gets into no log: gRPC's library has a log of its own."""

import json
import socket

import pytest

from benchmarks.servers.served import free_port
from tests.server.clients.environments import served
from tests.server.support import LIMIT_SECONDS, REQUEST_MEMORY, Packs

pytestmark = pytest.mark.slow

_PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
_SETTINGS, _GOAWAY = 4, 7
_FORGED = b'\n{"level": "error", "message": "forged"}\n'


def _frame(kind: int, payload: bytes = b"") -> bytes:
    return len(payload).to_bytes(3, "big") + bytes([kind, 0]) + bytes(4) + payload


def test_a_client_cannot_forge_a_line(packs: Packs) -> None:
    number = free_port()
    said: list[bytes] = []
    models = ("--model", "tiny", "--repository", str(packs.repository))
    budget = str(REQUEST_MEMORY + (64 << 20))
    with served(
        *models, "--grpc-port", str(number), "--budget", budget, "--log-format", "json", log=said
    ):
        leaving = _frame(_GOAWAY, bytes(4) + (2).to_bytes(4, "big") + _FORGED)
        for _ in range(20):
            with socket.create_connection(("127.0.0.1", number), LIMIT_SECONDS) as client:
                client.sendall(_PREFACE + _frame(_SETTINGS) + leaving)
                client.shutdown(socket.SHUT_WR)
                while client.recv(1 << 16):  # until the server has ended it
                    pass
    assert all("logger" in json.loads(line) for line in said), said
