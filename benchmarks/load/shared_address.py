"""Many clients behind one address: what they lose, direct and through nginx.

64, 256 and 1,000 clients keep a connection each and ask once a second, all from 127.0.0.1, as those of a
NAT or a container bridge do. ``nginx``: the same through nginx with kept connections to the service.
``hostile``: the same through nginx beside one client that sends bodies slowly, resets its requests and says
garbage, 50 connections of each at a time; ``stream``: so that they all reach the service, by PROXY headers.
``announced``: 100 such clients beside 300 connections of the same address that announce 2 GB each, are
refused, do not go, and come again. ``dribbling``: beside 300 that send a head byte by byte.

Run as ``python -m benchmarks.load.shared_address [--ways direct,nginx,hostile] [--clients 64,256,1000]``.
``--program FILE`` measures another installation; the clients use nothing of a service but HTTP.
"""

import argparse
import resource
import tempfile
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.load.child import LoadProcess
from benchmarks.load.messages import request_bytes
from benchmarks.machine.processes import cpu_seconds
from benchmarks.mill.crowd import Crowd, Siege
from benchmarks.servers.client import beside
from benchmarks.servers.nginx import NoNginxError, before, check_nginx
from benchmarks.servers.served import Served, ours, running
from benchmarks.servers.small_models import TINY_SHAPE, drawn_request, tiny
from benchmarks.turns import end
from models.compiler import compile_onnx

_WAYS = ("direct", "nginx", "hostile", "stream", "announced", "dribbling")
# Of the service, as the recipes say.
_FLAGS = {
    "nginx": ["--trusted-proxies", "127.0.0.1"],
    "hostile": ["--trusted-proxies", "127.0.0.1"],
    "stream": ["--trusted-proxies", "127.0.0.2", "--proxy-protocol"],
}
_GOOD = 100
_HOSTILE = "127.0.0.66"
_ANNOUNCED = request_bytes("POST", "/v2/models/tiny/infer", None, {"Content-Length": str(2 << 30)})
_ANNOUNCING = Crowd(300, _ANNOUNCED, drip=b"x", stays=True)
_DRIBBLING = Crowd(300, b"GET / HTTP/1.1\r\nx: ", drip=b"x")
_INFER = request_bytes("POST", "/v2/models/tiny/infer", None, {"Content-Length": "1000000"})
_LISTS = request_bytes("POST", "/v2/repository/index", b"")
_HOSTILITIES = {
    "slow bodies": Crowd(50, _INFER, drip=b" "),
    "resets": Crowd(50, _INFER + bytes(100_000), pace=100, resets=True),
    "resets behind requests": Crowd(50, _LISTS, pace=100, resets=True),
    "garbage": Crowd(50, b"\x16\x03\x01 garbage\r\n\r\n" * 20, pace=200),
}
#: What a client may get: an answer, or that there is no room for now and when to come again.
_FAIR = {"200", "503"}


class _Bench:
    """One way to the service after the other, a service of its own for each number of clients."""

    def __init__(self, given: argparse.Namespace, folder: Path, load: LoadProcess) -> None:
        self._given, self._folder, self._load = given, folder, load
        self._repository = folder / "repository"
        compile_onnx(tiny(folder), self._repository / "tiny")
        self._request = folder / "request"
        self._request.write_bytes(drawn_request("tiny", "x", TINY_SHAPE))

    def measure(self, way: str, clients: int) -> dict[str, Any]:
        """Return what ``clients`` got on a ``way``."""
        flags = [*_FLAGS.get(way, ()), *self._given.flags]
        command = ours(self._repository, self._given.budget, *flags)
        if self._given.program:
            command = [self._given.program, *command[command.index("serve") :]]
        with running(command, "--port") as served:
            began = cpu_seconds(served.pid)
            result = getattr(self, f"_{way}")(served, clients)
            result["server_cpu_seconds"] = round(cpu_seconds(served.pid) - began, 2)
        return {"way": way, "clients": clients, **result}

    def _paced(self, port: int, clients: int) -> dict[str, Any]:
        given = self._given
        pace = {"rate": given.rate, "within": given.within}
        return self._load.paced(port, self._request, clients, given.seconds, **pace)

    def _direct(self, served: Served, clients: int) -> dict[str, Any]:
        return self._paced(served.port, clients)

    def _nginx(self, served: Served, clients: int) -> dict[str, Any]:
        with before(served.port, self._folder / "nginx") as port:
            return self._paced(port, clients)

    def _hostile(self, served: Served, clients: int) -> dict[str, Any]:
        with before(served.port, self._folder / "nginx") as port:
            return self._beside(_HOSTILITIES, _HOSTILE, port, clients)

    def _stream(self, served: Served, clients: int) -> dict[str, Any]:
        with before(served.port, self._folder / "nginx", "nginx-stream.conf") as port:
            return self._beside(_HOSTILITIES, _HOSTILE, port, clients)

    def _announced(self, served: Served, clients: int) -> dict[str, Any]:
        return self._beside({"announcing": _ANNOUNCING}, "127.0.0.1", served.port, clients)

    def _dribbling(self, served: Served, clients: int) -> dict[str, Any]:
        return self._beside({"dribbling": _DRIBBLING}, "127.0.0.1", served.port, clients)

    def _beside(
        self, crowds: dict[str, Crowd], address: str, port: int, clients: int
    ) -> dict[str, Any]:
        """Return what ``clients`` got beside ``crowds`` of one ``address``, and these."""
        sieges = {name: Siege(crowd, port, [address]) for name, crowd in crowds.items()}
        longest = self._given.seconds + 15
        with beside(*(partial(siege.play, longest) for siege in sieges.values())):
            result = self._paced(port, clients)
        return {**result, "beside": {name: dict(siege.seen) for name, siege in sieges.items()}}


def _faults(result: dict[str, Any]) -> list[str]:
    """Return in words what was lost."""
    unfair = {name: count for name, count in result["outcomes"].items() if name not in _FAIR}
    name = f"{result['way']}, {result['clients']} clients"
    return [f"{name}: {count} of {result['sent']} {kind}" for kind, count in unfair.items()]


def main() -> None:
    """Measure and print JSON; exit 1 where a request was lost, 2 where nginx is wanted and not there."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--ways", default=",".join(_WAYS), type=lambda text: text.split(","))
    parser.add_argument("--clients", default="64,256,1000", help="direct and through nginx")
    parser.add_argument("--seconds", type=float, default=10.0, help="of each")
    parser.add_argument("--rate", type=float, default=1.0, help="requests a second of a client")
    parser.add_argument(
        "--within", type=float, default=0.0, help="seconds in which all of them ask"
    )
    parser.add_argument("--budget", default="48MiB")
    parser.add_argument("--program", help="layerstream of another installation")
    parser.add_argument("flags", nargs="*", help="of serve, behind --")
    options = parser.parse_args()
    unknown = set(options.ways) - set(_WAYS)
    if unknown:
        parser.error(f"--ways: {', '.join(sorted(unknown))}; there are {', '.join(_WAYS)}")
    if "nginx" in options.ways:
        try:
            check_nginx()
        except NoNginxError as exc:
            parser.error(f"--ways nginx: {exc}")
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(most, 16384), most))
    counts = [int(each) for each in options.clients.split(",")]
    crowded = {"announced", "dribbling"}
    jobs = [(way, count) for way in options.ways if way not in crowded for count in counts]
    jobs += [(way, _GOOD) for way in options.ways if way in crowded]
    with tempfile.TemporaryDirectory(dir=".") as name, LoadProcess() as load:
        bench = _Bench(options, Path(name), load)
        results = [bench.measure(*job) for job in jobs]
    faults = [fault for result in results for fault in _faults(result)]
    end({"results": results, "faults": faults}, not faults)


if __name__ == "__main__":
    main()
