"""What is answered without keys, and what may load and unload: never a page of another site."""

import logging
from ipaddress import ip_address
from pathlib import Path

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from server.access import add_key
from server.protocol.administration import Caller, host_refusal, refusal
from server.protocol.routing import Route
from server.settings.settings import is_loopback, server_names, warn_of_exposure
from tests.examples import examples, over
from tests.server.conftest import SettingsFactory
from tests.server.support import ServiceUnderTest, error, serving

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


# Under which names the server is asked

NAMES = frozenset({"localhost", "box.lan", "raspberrypi.local"})


@over(
    "host",
    [
        *OWN,
        *("10.0.0.7:8080", "[2001:db8::1]", "[::ffff:10.0.0.7]:1", "0.0.0.0:80", "255.255.255.255"),
        *("RaspberryPi.local:8080", "", None),
    ],
)
def test_under_addresses_and_the_names_of_the_machine_all_ask(host: str | None) -> None:
    assert host_refusal(host, NAMES) == ""


OTHER_NAMES = (
    *("evil.example", "evil.example:8080", "EVIL.EXAMPLE", "localhost.evil.example", "evil"),
    *("127.0.0.1.evil.example", "127.0.0.1.nip.io:80", "xn--bcher-kva.example", "evil.local"),
    *("a b", "localhost:80:80", "[::1", "::1", "localhost@evil.example", "localhost/x", "*"),
    *(
        "evil.example#localhost",
        "localhost,evil.example",
        "l\u043ecalhost",
        "box.lan.",
        "\0",
        "2130706433",
    ),
    *(
        "[::1]evil.example",
        "127.0.0.1:80evil",
        "box.lan evil.example",
        " ",
        "[evil.example]",
        "0x7f.1",
    ),
)


@over("host", OTHER_NAMES)
def test_under_no_other_name(host: str) -> None:
    message = host_refusal(host, NAMES)
    assert "Host" in message
    assert "--allowed-hosts" in message
    assert host_refusal(host, NAMES | {"*"}) == ""


@given(st.text(max_size=30))
@examples(few=20, many=5000)
def test_what_is_admitted_is_an_address_or_one_of_the_names(host: str) -> None:
    if host and not host_refusal(host, NAMES):
        name, colon, port = host.lower().rpartition(":")
        name = name if colon and port.isdigit() else host.lower()
        assert name in NAMES or ip_address(name.strip("[]")) is not None


@pytest.mark.parametrize("host", ["0.0.0.0", "Box.lan"])
def test_names_follow_from_the_settings(
    settings: SettingsFactory, host: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("socket.gethostname", lambda: "Board.Example.org")
    names = server_names(settings(host=host, allowed_hosts="vision.Example.org, cells"))
    machine = {"localhost", "board.example.org", "board.local"}
    assert names == machine | {host.lower(), "vision.example.org", "cells"}


@over("name", ["evil.example:80", "a b", "http://x", "", "-x", "x/", "*.example.org", "[::1]"])
def test_a_name_that_is_none_is_refused(settings: SettingsFactory, name: str) -> None:
    with pytest.raises(ValidationError, match="allowed_hosts"):
        settings(allowed_hosts=(name,))


@pytest.mark.asyncio(loop_scope="module")
async def test_no_route_answers_under_another_name(shared: ServiceUnderTest) -> None:
    """Also none that is no route, or is asked by another method."""
    served = [route for route in shared.app.routes if isinstance(route, Route)]
    routes = [(method, route.path) for route in served for method in route.methods or ()]
    others = [
        ("GET", "/nothing"),
        ("HEAD", "/v2"),
        ("OPTIONS", "/v2"),
        ("PUT", "/metrics"),
        ("GET", "/v2/"),
    ]
    assert len(routes) > 40
    for method, path in routes + others:
        target = path.format(name="tiny", version="1", region="r")
        for host in ("evil.example:8080", "evil"):
            answer = await shared.client.request(
                method, target, headers={"Host": host}, content=b"{"
            )
            if method == "HEAD":
                assert answer.status_code == 403
            else:
                error_of(answer, host)


def error_of(answer: httpx.Response, host: str) -> None:
    assert answer.status_code == 403, answer.text
    fault = answer.json()["error"]
    assert host in (fault if isinstance(fault, str) else fault["message"])  # OpenAI's has fields
    assert set(answer.json()) <= {"error", "success", "code"}


async def test_with_keys_any_name_will_do(settings: SettingsFactory, tmp_path: Path) -> None:
    """No page has a key, and probes have their own names for what they ask."""
    key = add_key(tmp_path / "keys", "camera", "infer")
    async with serving(settings(keys=tmp_path / "keys")) as service:
        for headers, status in (({}, 401), ({"Authorization": f"Bearer {key}"}, 200)):
            sent = {"Host": "evil.example", **headers}
            assert (await service.client.get("/v2", headers=sent)).status_code == status
        health = await service.client.get("/v2/health/live", headers={"Host": "evil.example"})
        assert health.status_code == 200


# What may change what is served


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
    "host, allowed",
    [("10.0.0.1:8080", True), ("box.lan:8080", True), ("rebound.example:8080", False)],
)
def test_a_page_under_a_name_that_may_be_rebound(host: str, allowed: bool) -> None:
    """Its Origin is its Host, and both are what it calls itself: only an address cannot lie."""
    for scheme in ("http", "https"):
        caller = Caller("10.0.0.7", host, f"{scheme}://{host}", "same-origin")
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
        assert service.worker("tiny").fault is None
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
    shared: ServiceUnderTest, client: object, server: object, status: int
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
    async with serving(settings(allow_admin=True, allowed_hosts=("bOx",))) as service:
        other = httpx.ASGITransport(service.asgi, client=("10.0.0.7", 5))
        async with httpx.AsyncClient(transport=other, base_url="http://Box:8080") as outside:
            assert (await outside.post(UNLOAD.format("tiny"))).status_code == 200
            headers = {"Origin": "http://evil.example"}
            error(await outside.post(LOAD.format("tiny"), headers=headers), 403, "Origin")


@pytest.mark.asyncio(loop_scope="module")
async def test_every_way_to_change_what_is_served_is_guarded(shared: ServiceUnderTest) -> None:
    """Whatever takes a POST and is neither inference nor the index refuses a page of another site.

    But for what is not served at all: there is nothing that it could change.
    """
    actions = (":classify", ":depth", ":detect", ":embed", ":infer", ":segment")
    harmless = (*actions, "/infer", "/embeddings", "/repository/index")
    for path, operations in shared.app.openapi()["paths"].items():
        for method in set(operations) - {"get"}:
            if operations[method]["tags"] == ["not served"]:
                answer = await shared.client.request(method, path.format(name="tiny", region="r"))
                assert answer.status_code == 200
            elif not path.endswith(harmless):
                target = path.format(name="tiny", version="1")
                headers = {"Origin": "http://evil.example"}
                answer = await shared.client.request(method, target, headers=headers)
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
