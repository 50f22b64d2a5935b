"""A certificate authority for one run of the tests, and a client's end of TLS in the hands of a test."""

import ssl
from functools import cache
from pathlib import Path

import trustme

from server.transport.certificate import Certificate
from server.transport.encryption import Encrypted
from tests.server.transport.wire import Application, Wire

NAME = "layerstream.test"


@cache
def authority() -> trustme.CA:
    return trustme.CA()


def issue(folder: Path, name: str = NAME) -> tuple[Path, Path]:
    """Write a new certificate for ``name`` and its key; return their files."""
    made = authority().issue_cert(name, "127.0.0.1")
    certificate, key = folder / "certificate.pem", folder / "key.pem"
    certificate.write_bytes(made.cert_chain_pems[0].bytes())
    key.write_bytes(made.private_key_pem.bytes())
    return certificate, key


def trusting(version: ssl.TLSVersion = ssl.TLSVersion.TLSv1_3) -> ssl.SSLContext:
    """What a client has that speaks this version alone and trusts the authority."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = context.maximum_version = version
    authority().configure_trust(context)
    return context


class TlsWire(Wire):
    """A client of one encrypted connection; nothing goes over a network.

    ``step``: bytes that come at a time. ``read``: what the client has decrypted; ``said_goodbye``: and that
    nothing was cut off.
    """

    def __init__(
        self,
        app: Application,
        certificate: Certificate,
        client: ssl.SSLContext,
        step: int = 1 << 14,
    ) -> None:
        self._certificate = certificate
        self._step = step
        self._incoming, self._outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self.tls = client.wrap_bio(self._incoming, self._outgoing, server_hostname=NAME)
        self._taken = 0
        self._waiting = b""
        self.read = b""
        self.shaken = self.said_goodbye = False
        super().__init__(app)

    def _connect(self) -> None:
        self.reads = Encrypted(self.connection, self._certificate.context)
        self.reads.connection_made(self.transport)

    async def shakes_hands(self) -> None:
        while not self.shaken:
            try:
                self.tls.do_handshake()
                self.shaken = True
            except ssl.SSLWantReadError:
                pass
            await self.carries()

    async def says(self, data: bytes) -> None:
        """Send ``data`` and take what comes back."""
        self.tls.write(data)
        await self.carries()

    async def carries(self) -> None:
        """Carry bytes both ways until there are none, or none are read."""
        while True:
            self._waiting += self._outgoing.read()
            came = b"".join(self.transport.writes[self._taken :])
            self._taken = len(self.transport.writes)
            self._incoming.write(came)
            self._decrypt()
            if not self.delivers() and not came:
                return
            await self.settled()

    def delivers(self) -> bool:
        """Deliver what the client has sent, ``step`` bytes at a time, as far as it is read."""
        moved = False
        while self._waiting and not (
            self.transport.is_reading_paused or self.transport.is_closing()
        ):
            piece, self._waiting = self._waiting[: self._step], self._waiting[self._step :]
            self.reads.get_buffer(-1)[: len(piece)] = piece
            self.reads.buffer_updated(len(piece))
            moved = True
        return moved

    def _decrypt(self) -> None:
        try:
            while self.shaken and not self.said_goodbye:
                plain = self.tls.read(1 << 16)
                self.read += plain
                self.said_goodbye = not plain
        except ssl.SSLWantReadError:
            pass
        except ssl.SSLZeroReturnError:
            self.said_goodbye = True
