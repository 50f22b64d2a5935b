"""The server's certificate: read at start and again when it was renewed."""

import ssl
from pathlib import Path

from server.errors import ServiceError


class CertificateError(ServiceError):
    """The files are no certificate with its key; the message has the file."""


class Certificate:
    """A certificate and its key. New connections handshake with ``context``; older ones keep theirs.

    ``pem``: key and certificate as bytes, for gRPC, which does not use Python's TLS.
    """

    context: ssl.SSLContext
    pem: tuple[bytes, bytes]

    def __init__(self, certificate: Path, key: Path | None) -> None:
        """Read the files; without ``key`` the file of the certificate has both.

        Raises:
            CertificateError: they cannot be used.
        """
        self._certificate, self._key = certificate, key or certificate
        self.reload()

    def reload(self) -> None:
        """Read the files again.

        Raises:
            CertificateError: they cannot be used; the certificate of before stays.
        """
        self.context = _context(self._certificate, self._key)
        self.pem = self._key.read_bytes(), self._certificate.read_bytes()


def _context(certificate: Path, key: Path) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    # A client that asks for one handshake after another could keep the event loop busy.
    context.options |= ssl.OP_NO_RENEGOTIATION | ssl.OP_CIPHER_SERVER_PREFERENCE
    context.set_alpn_protocols(["http/1.1"])
    for path in (certificate, key):
        _check(path)
    try:
        context.load_cert_chain(certificate, key, _no_passphrase)
    except CertificateError as exc:
        raise CertificateError(f"{key}: {exc}") from exc
    except ssl.SSLError as exc:
        raise CertificateError(_why(certificate, key, exc)) from exc
    return context


def _check(path: Path) -> None:
    try:
        if path.exists() and not path.is_file():  # opening a pipe would wait for its writer
            raise CertificateError(f"{path}: not a file")
        path.open("rb").close()
    except OSError as exc:  # an error of OpenSSL would not name the file
        raise CertificateError(f"{path}: {exc.strerror or exc}") from exc


def _no_passphrase() -> str:
    """Raise an error in place of OpenSSL's question on the terminal, which a server cannot answer."""
    raise CertificateError(
        "it has a passphrase; write it without one, readable by the server alone"
    )


def _why(certificate: Path, key: Path, exc: ssl.SSLError) -> str:
    if exc.reason == "KEY_VALUES_MISMATCH":
        return f"{key}: not the key of {certificate}"
    reason = f" ({exc.reason.lower().replace('_', ' ')})" if exc.reason else ""
    named = ", ".join(dict.fromkeys((str(certificate), str(key))))
    return f"{named}: not a certificate and its key, in PEM{reason}"
