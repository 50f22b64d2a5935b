"""Certificates: files that can be used, files that cannot, and a renewed one."""

import ssl
from collections.abc import Callable
from pathlib import Path

import pytest
from cryptography.hazmat.primitives import serialization

from server.transport.certificate import Certificate, CertificateError
from tests.server.transport.authority import TlsWire, issue, trusting
from tests.server.transport.wire import answers_at_once


def locked(key: Path) -> None:
    """Give ``key`` a passphrase."""
    found = serialization.load_pem_private_key(key.read_bytes(), None)
    key.write_bytes(
        found.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.BestAvailableEncryption(b"secret"),
        )
    )


def swapped(certificate: Path, key: Path) -> None:
    """Give ``certificate`` the key of another."""
    kept = certificate.read_bytes()
    issue(key.parent)
    certificate.write_bytes(kept)


@pytest.mark.parametrize(
    ("spoil", "words"),
    [
        (lambda certificate, key: certificate.unlink(), "certificate.pem: No such file"),
        (lambda certificate, key: key.unlink(), "key.pem: No such file"),
        (lambda certificate, key: (key.unlink(), key.mkdir()), "key.pem: not a file"),
        (lambda certificate, key: certificate.write_text("x"), "not a certificate"),
        (lambda certificate, key: certificate.write_bytes(b""), "not a certificate"),
        (lambda certificate, key: key.write_text("x"), "not a certificate"),
        (lambda certificate, key: key.write_bytes(certificate.read_bytes()), "not a certificate"),
        (lambda certificate, key: locked(key), "key.pem: it has a passphrase"),
        (swapped, "key.pem: not the key of .*certificate.pem"),
    ],
)
def test_files_that_are_no_certificate(
    tmp_path: Path, spoil: Callable[[Path, Path], object], words: str
) -> None:
    files = issue(tmp_path)
    held = Certificate(*files)
    before = held.context
    spoil(*files)
    for use in (lambda: Certificate(*files), held.reload):
        with pytest.raises(CertificateError, match=words) as caught:
            use()
        assert "\n" not in str(caught.value)
        assert str(tmp_path) in str(caught.value)
    assert held.context is before


def test_one_file_may_have_both(tmp_path: Path) -> None:
    certificate, key = issue(tmp_path)
    certificate.write_bytes(key.read_bytes() + certificate.read_bytes())
    key.unlink()
    Certificate(certificate, None)


async def test_a_renewed_one_is_for_those_who_come(tmp_path: Path) -> None:
    held = Certificate(*issue(tmp_path))
    serials: list[object] = []
    wires: list[TlsWire] = []
    for _ in range(2):
        wires.append(TlsWire(answers_at_once, held, trusting(ssl.TLSVersion.TLSv1_2)))
        await wires[-1].shakes_hands()
        found = wires[-1].tls.getpeercert()
        serials.append(found and found["serialNumber"])
        issue(tmp_path)
        held.reload()
    assert serials[0] != serials[1]
    for wire in wires:  # earlier connections stay
        await wire.says(b"GET /x HTTP/1.1\r\nhost: localhost\r\n\r\n")
        assert wire.read.endswith(b"ok")
