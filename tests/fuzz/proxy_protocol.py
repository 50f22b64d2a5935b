"""Fuzz the PROXY protocol: ``python -m tests.fuzz.proxy_protocol [seconds] [first] [--minutes N]``.

Each example is a header, most of them damaged, with a request behind it, in reads that fall anywhere. It
says the same as in one read, names an address or none, and is never waited for beyond its limit; what is
refused is refused in a short line.
"""

import random
import sys
from ipaddress import ip_address

from server.transport.proxy_protocol import (
    HEADER_BYTES,
    ProxyHeader,
    ProxyHeaderError,
    read_header,
)
from tests.fuzz.http_requests import cut
from tests.fuzz.pack import change_bytes, chosen_run, run_examples

_SIGNATURE = b"\r\n\r\n\0\r\nQUIT\n"
_BEHIND = b"GET / HTTP/1.1\r\nhost: x\r\n\r\n"
_WORDS = [
    b"TCP4",
    b"TCP6",
    b"UNKNOWN",
    b"UDP4",
    b"",
    b"192.0.2.7",
    b"2001:db8::1",
    b"::ffff:1.2.3.4",
]
_WORDS += [b"0", b"80", b"65535", b"65536", b"-1", b"fe80::1%eth0", b"x" * 90]


def drawn(rng: random.Random) -> bytes:
    """Draw a header, whole or damaged."""
    if rng.random() < 0.5:
        words = rng.choices(_WORDS, k=rng.choice((1, 5, 5, 6)))
        if rng.random() < 0.6:
            version = rng.choice((4, 6))
            words = [b"TCP%d" % version, *[_WORDS[5 if version == 4 else 6]] * 2, b"80", b"0"]
        text = b" ".join([b"PROXY", *words]) + rng.choice((b"\r\n", b"\r\n", b"\n", b""))
    else:
        size = rng.choice((0, 12, 36, 216, 400, 5000))
        family = rng.choice((0x00, 0x11, 0x21, 0x31, 0x12, rng.randrange(256)))
        command = rng.choice((0x20, 0x21, 0x21, 0x21, rng.randrange(256)))
        said = size if rng.random() < 0.8 else rng.randrange(1 << 16)
        text = _SIGNATURE + bytes([command, family]) + said.to_bytes(2, "big") + rng.randbytes(size)
    return change_bytes(text, rng) if rng.random() < 0.3 else text


def said(parts: list[bytes]) -> ProxyHeader | str | None:
    """Return what ``parts`` say, as a connection reads them: nothing is looked at behind an end."""
    data = b""
    for part in parts:
        data += part
        try:
            found = read_header(data)
        except ProxyHeaderError as exc:
            return str(exc)
        if found is not None:
            return found
        assert len(data) < HEADER_BYTES, "it is waited for beyond its limit"
    return None


def run(number: int) -> bool:
    """Read one header; return whether it is one."""
    rng = random.Random(number)
    data = drawn(rng) + _BEHIND * (rng.random() < 0.9)
    found = said([data])
    assert said(cut(rng, data)) == found, "it depends on how reads fall"
    if isinstance(found, str):
        assert 0 < len(found) <= 100
    elif found is not None:
        assert found.size <= min(len(data), HEADER_BYTES)
        if found.client is not None:
            host, port = found.client
            assert str(ip_address(host)) == host
            assert 0 <= port <= 0xFFFF
    return isinstance(found, ProxyHeader)


def main(arguments: list[str]) -> int:
    seconds, first = chosen_run(arguments)
    return run_examples(run, seconds, first)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
