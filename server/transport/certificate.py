"""The server's certificate: read at start and again when it was renewed."""

import ssl
from pathlib import Path


class CertificateError(Exception):
    """The files are no certificate with its key; the message has the file."""


class Certificate:
    """``context`` is what connections handshake with that come from now on; others keep theirs.

    ``pem``: key and certificate, for whoever speaks TLS without Python's.
    """

    context: ssl.SSLContext
    pem: tuple[bytes, bytes]

    def __init__(self, certificate: Path, key: Path | None) -> None:
        """Read the files; without ``key`` that of the certificate has both.

        Raises:
            CertificateError: they cannot be used.
        """
        self._certificate, self._key = certificate, key or certificate
        self.reload()

    def reload(self) -> None:
        """Read the files again.

        Raises:
            CertificateError: they cannot be used; the certificate is the one of before.
        """
        self.context = _context(self._certificate, self._key)
        self.pem = self._key.read_bytes(), self._certificate.read_bytes()


def _context(certificate: Path, key: Path) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    # A client that asks for handshake after handshake would have the event loop to itself.
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
        if path.exists() and not path.is_file():  # a pipe would be waited for
            raise CertificateError(f"{path}: not a file")
        path.open("rb").close()
    except OSError as exc:  # OpenSSL would not say which of the two it is
        raise CertificateError(f"{path}: {exc.strerror or exc}") from exc


def _no_passphrase() -> str:
    """Stand for the question on the terminal, which nobody would answer."""
    raise CertificateError(
        "it has a passphrase; write it without one, readable by the server alone"
    )


def _why(certificate: Path, key: Path, exc: ssl.SSLError) -> str:
    if exc.reason == "KEY_VALUES_MISMATCH":
        return f"{key}: not the key of {certificate}"
    reason = f" ({exc.reason.lower().replace('_', ' ')})" if exc.reason else ""
    named = ", ".join(dict.fromkeys((str(certificate), str(key))))
    return f"{named}: not a certificate and its key, in PEM{reason}"
