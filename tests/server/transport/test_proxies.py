"""The client of a request that a trusted proxy passes on, by its headers."""

from hypothesis import given
from hypothesis import strategies as st

from server.transport.proxies import NO_PROXIES, UNIX, TrustedProxies
from tests.examples import over

TRUSTED = TrustedProxies.named(["10.0.0.0/8", "2001:db8::/32", "192.0.2.1", UNIX])
XFF, FORWARDED = b"x-forwarded-for", b"forwarded"


@over(
    "address, is_trusted",
    [
        ("10.9.8.7", True),
        ("192.0.2.1", True),
        ("192.0.2.2", False),
        ("::ffff:10.0.0.1", True),
        ("2001:db8::1%eth0", True),
        ("2001:db9::1", False),
        ("", True),
        ("no address", False),
    ],
)
def test_whom_settings_name(address: str, is_trusted: bool) -> None:
    assert TRUSTED.trusts(address) == is_trusted
    assert not NO_PROXIES.trusts(address)


@over(
    "headers, client",
    [
        ([], None),
        ([(XFF, b"203.0.113.5")], "203.0.113.5"),
        ([(XFF, b"203.0.113.5:4711")], "203.0.113.5"),
        ([(XFF, b"[2001:db9::5]:80")], "2001:db9::5"),
        # What a client wrote itself stands before what its proxies did.
        ([(XFF, b"127.0.0.1, 203.0.113.5, 10.0.0.2")], "203.0.113.5"),
        ([(XFF, b"127.0.0.1"), (XFF, b"203.0.113.5,10.0.0.2 ")], "203.0.113.5"),
        ([(XFF, b"10.0.0.3, 10.0.0.2")], "10.0.0.3"),
        ([(XFF, b"203.0.113.5, unknown, 10.0.0.2")], "10.0.0.2"),
        ([(XFF, b"unknown")], None),
        ([(XFF, b" , ,")], None),
        ([(FORWARDED, b'For="[2001:db9::5]:80";proto=https, for=10.0.0.2')], "2001:db9::5"),
        ([(FORWARDED, b"proto=https;for=203.0.113.5;by=10.0.0.1")], "203.0.113.5"),
        ([(FORWARDED, b"for=_hidden")], None),
        ([(FORWARDED, b"for=198.51.100.1"), (XFF, b"203.0.113.5")], "203.0.113.5"),
    ],
)
def test_whose_request_it_is(headers: list[tuple[bytes, bytes]], client: str | None) -> None:
    assert TRUSTED.client(headers) == client


@given(st.lists(st.tuples(st.sampled_from([XFF, FORWARDED]), st.binary(max_size=40))))
def test_whatever_stands_there_is_an_address_or_nothing(
    headers: list[tuple[bytes, bytes]],
) -> None:
    found = TRUSTED.client(headers)
    assert found is None or all(character in "0123456789abcdef.:" for character in found)


@given(st.binary(max_size=60))
def test_what_a_client_writes_itself_changes_nothing(written: bytes) -> None:
    behind = written.replace(b'"', b"") + b", 203.0.113.5, 10.0.0.2"
    assert TRUSTED.client([(XFF, behind)]) == "203.0.113.5"
