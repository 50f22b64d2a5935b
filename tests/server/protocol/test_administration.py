"""The right to load and unload: this machine, by default, and never a page of another site."""

import logging

import httpx
import pytest

from server.protocol.administration import Caller, refusal
from server.settings.settings import is_loopback, warn_of_exposure
from tests.examples import over
from tests.server.conftest import SettingsFactory
from tests.server.support import Service, error, serving

LOAD = "/v2/repository/models/{}/load"
UNLOAD = "/v2/repository/models/{}/unload"

HERE = ("127.0.0.1", "::1", "127.8.9.10", "::ffff:127.0.0.1", None)
ELSEWHERE = ("10.0.0.7", "::ffff:10.0.0.7", "2001:db8::1", "0.0.0.0", "", "testclient")
OWN = ("localhost", "LOCALHOST:8080", "127.0.0.1:1", "127.3.2.1", "[::1]:8080", "box.lan:80")
FOREIGN = (
    *("evil.example", "evil.example:8080", "localhost.evil.example", "127.0.0.1.evil.example"),
    *(
        "10.0.0.7:8080",
        "[2001:db8::1]",
        "0.0.0.0:8080",
        "",
        "a b",
        "localhost:80:80",
        "[::1",
        "::1",
    ),
    *("localhost@evil.example", "localhost/x", None),
)


@over("host", OWN)
@over("peer", HERE)
def test_this_machine_by_its_own_names(peer: str | None, host: str) -> None:
    assert not refusal(Caller(peer, host), "box.lan", False)
    assert not refusal(Caller(peer, host, site="none"), "box.lan", False)


@over("peer", ELSEWHERE)
def test_no_other_machine(peer: str) -> None:
    assert "--allow-admin" in refusal(Caller(peer, "localhost:8080"), "box.lan", False)


def test_nothing_that_a_proxy_passes_on() -> None:
    caller = Caller("127.0.0.1", "localhost:8080", forwarded=True)
    assert "--allow-admin" in refusal(caller, "127.0.0.1", False)


@over("host", FOREIGN)
def test_no_name_that_somebody_pointed_here(host: str | None) -> None:
    assert "Host" in refusal(Caller("127.0.0.1", host), "127.0.0.1", False)


@over(
    "host, origin",
    [
        ("localhost:8080", "http://localhost:8080"),
        ("127.0.0.1:8080", "http://localhost:8080"),
        ("[::1]:8080", "http://[::1]:8080"),
        ("localhost", "http://localhost"),
        ("LocalHost:8080", "http://localhost:8080"),
    ],
)
def test_a_page_of_our_own(host: str, origin: str) -> None:
    assert not refusal(Caller("127.0.0.1", host, origin, "same-origin"), "127.0.0.1", False)


@over(
    "origin",
    [
        *("null", "", "http://evil.example", "http://evil.example:8080", "http://localhost:3000"),
        *("http://localhost", "file://", "http://localhost:8080/x"),
        *("http://localhost:8080, http://evil.example", "chrome-extension://abc", "localhost:8080"),
        "http://localhost:8080@evil.example",
    ],
)
@over("allow_admin", [False, True])
def test_no_page_of_another_site(origin: str, allow_admin: bool) -> None:
    caller = Caller("127.0.0.1", "localhost:8080", origin)
    assert "Origin" in refusal(caller, "127.0.0.1", allow_admin)


@pytest.mark.parametrize("allow_admin", [False, True])
def test_tls_is_a_proxy_of_the_administrator(allow_admin: bool) -> None:
    caller = Caller("127.0.0.1", "localhost:8080", "https://localhost:8080")
    assert (not refusal(caller, "127.0.0.1", allow_admin)) == allow_admin


@over("site", ["cross-site", "same-site"])
@over("allow_admin", [False, True])
def test_no_page_that_hides_its_origin(site: str, allow_admin: bool) -> None:
    assert refusal(Caller("127.0.0.1", "localhost:8080", site=site), "127.0.0.1", allow_admin)


@over("host", ["evil.example", None, "box.lan:8080", "10.0.0.1:8080"])
@over("peer", [*HERE, *ELSEWHERE])
def test_from_anywhere_when_told_so(peer: str | None, host: str | None) -> None:
    assert not refusal(Caller(peer, host), "0.0.0.0", True)
    assert not refusal(Caller(peer, host, forwarded=True), "0.0.0.0", True)


@over(
    "place, allowed",
    [("10.0.0.1:8080", True), ("box.lan:8080", True), ("rebound.example:8080", False)],
)
def test_a_page_under_a_name_that_may_be_rebound(place: str, allowed: bool) -> None:
    """Its Origin is its Host, and both are what it calls itself: only an address cannot lie."""
    for scheme in ("http", "https"):
        caller = Caller("10.0.0.7", place, f"{scheme}://{place}", "same-origin")
        assert (not refusal(caller, "box.lan", True)) == allowed


def test_a_refusal_is_one_short_line() -> None:
    for caller in (Caller("::1", "h\n" * 9999), Caller("::1", "localhost", "o\n" * 9999)):
        found = refusal(caller, "127.0.0.1", False)
        assert len(found) < 400
        assert "\n" not in found


async def test_over_http(settings: SettingsFactory) -> None:
    async with serving(settings()) as service:
        client = service.client
        for method, headers in (
            (LOAD, {"Origin": "http://evil.example", "Content-Type": "text/plain"}),
            (UNLOAD, {"Origin": "null"}),
            (UNLOAD, {"Host": "evil.example"}),
            (UNLOAD, {"Sec-Fetch-Site": "cross-site"}),
            (UNLOAD, {"X-Forwarded-For": "127.0.0.1"}),
            (UNLOAD, {"Forwarded": "for=127.0.0.1"}),
        ):
            for name in ("tiny", "nobody"):  # clients without the right do not learn what there is
                response = await client.post(method.format(name), headers=headers, content="x")
                error(response, 403, "loading and unloading")
        other = httpx.ASGITransport(service.asgi, client=("10.0.0.7", 5))
        async with httpx.AsyncClient(transport=other, base_url="http://127.0.0.1:8080") as outside:
            error(await outside.post(UNLOAD.format("tiny")), 403, "--allow-admin")
            assert (await outside.post("/v2/repository/index")).status_code == 200
        assert service.worker("tiny").fault == ""
        headers = {"Origin": "http://127.0.0.1:8080"}
        assert (await client.post(UNLOAD.format("tiny"), headers=headers)).status_code == 200
        assert (await client.post(LOAD.format("tiny"))).status_code == 200


@over(
    "client, server, status",
    [
        (None, ("/run/layerstream.sock", None), 200),
        (None, ("127.0.0.1", 8080), 403),  # reset before it was asked for its address
        (None, None, 403),
        (("127.0.0.1", 9), ("127.0.0.1", 8080), 200),
    ],
)
@pytest.mark.asyncio(loop_scope="module")
async def test_who_has_no_address(
    shared: Service, client: object, server: object, status: int
) -> None:
    sent: list[dict[str, object]] = []

    async def receive() -> dict[str, object]:
        return {"type": "http.request", "body": b"", "more_body": False}

    async def send(message: object) -> None:
        assert isinstance(message, dict)
        sent.append(message)

    path = LOAD.format("tiny")
    scope = {
        "type": "http",
        "asgi": {"version": "3.0"},
        "http_version": "1.1",
        "method": "POST",
        "scheme": "http",
        "path": path,
        "raw_path": path.encode(),
        "query_string": b"",
        "root_path": "",
        "headers": [(b"host", b"localhost")],
        "client": client,
        "server": server,
    }
    await shared.asgi(scope, receive, send)
    assert sent[0]["status"] == status


async def test_others_are_let_in_by_a_setting(settings: SettingsFactory) -> None:
    async with serving(settings(allow_admin=True)) as service:
        other = httpx.ASGITransport(service.asgi, client=("10.0.0.7", 5))
        async with httpx.AsyncClient(transport=other, base_url="http://box:8080") as outside:
            assert (await outside.post(UNLOAD.format("tiny"))).status_code == 200
            headers = {"Origin": "http://evil.example"}
            error(await outside.post(LOAD.format("tiny"), headers=headers), 403, "Origin")


@pytest.mark.asyncio(loop_scope="module")
async def test_every_way_to_change_what_is_served_is_guarded(shared: Service) -> None:
    """Whatever takes a POST and is neither inference nor the index refuses a page of another site.

    But for what is not served at all: there is nothing that it could change.
    """
    harmless = (":classify", ":detect", ":segment", ":infer", "/infer", "/repository/index")
    for path, operations in shared.app.openapi()["paths"].items():
        for method in set(operations) - {"get"}:
            if operations[method]["tags"] == ["not served"]:
                answer = await shared.client.request(method, path.format(name="tiny", region="r"))
                assert answer.status_code == 200
            elif not path.endswith(harmless):
                place = path.format(name="tiny", version="1")
                headers = {"Origin": "http://evil.example"}
                answer = await shared.client.request(method, place, headers=headers)
                error(answer, 403)


@pytest.mark.parametrize(
    ("host", "allow_admin", "words"),
    [
        ("127.0.0.1", False, ()),
        ("localhost", False, ()),
        ("::1", False, ()),
        ("0.0.0.0", False, ("0.0.0.0", "EVERYONE", "stays with this machine")),
        ("::", True, ("EVERYONE", "load and unload models")),
        ("10.1.2.3", False, ("10.1.2.3", "EVERYONE")),
        ("127.0.0.1", True, ("proxy", "load and unload")),
    ],
)
def test_what_others_can_reach_is_a_loud_line(
    settings: SettingsFactory,
    caplog: pytest.LogCaptureFixture,
    host: str,
    allow_admin: bool,
    words: tuple[str, ...],
) -> None:
    warn_of_exposure(settings(allow_admin=allow_admin), host)
    assert [record.levelno for record in caplog.records] == [logging.WARNING] * bool(words)
    for word in words:
        assert word in caplog.text
    assert caplog.text.count("\n") <= 1


@pytest.mark.parametrize(
    ("host", "files", "words"),
    [
        ("127.0.0.1", ("keys",), ""),
        ("0.0.0.0", ("keys",), "without TLS"),
        ("0.0.0.0", ("tls_certificate",), "EVERYONE"),
        ("0.0.0.0", ("keys", "tls_certificate"), ""),
        (None, (), ""),
    ],
)
def test_keys_and_tls_are_what_lets_others_in(
    settings: SettingsFactory,
    caplog: pytest.LogCaptureFixture,
    host: str | None,
    files: tuple[str, ...],
    words: str,
) -> None:
    warn_of_exposure(settings(**dict.fromkeys(files, "/a/file")), host)
    assert bool(caplog.records) == bool(words)
    assert words in caplog.text


@over("host, loopback", [("127.9.9.9", True), ("0", False), ("\0", False), ("a" * 300, False)])
def test_odd_hosts(host: str, loopback: bool) -> None:
    assert is_loopback(host) == loopback
