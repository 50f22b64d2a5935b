"""Loading and unloading: a spare model by its owner, all models by pages of other sites."""

from benchmarks.load.messages import request_bytes
from benchmarks.mill.target import AttackedServer

_FOREIGN = {"Content-Type": "text/plain", "Origin": "http://elsewhere.example"}


def _post(path: str, headers: dict[str, str], host: str = "localhost") -> bytes:
    return request_bytes("POST", f"/v2/repository/{path}", b"{}", headers, host)


async def administration(target: AttackedServer) -> None:
    """Unload and load ``spare``; try to unload others as a page of another site would.

    At the end the owner loads what that unloaded, so that other phases are not measured without it.
    """
    foreign = [
        _post("models/tiny/unload", _FOREIGN),
        _post("models/cifar10/unload", _FOREIGN),
        _post("models/tiny/unload", {}, host="elsewhere.example"),
        _post("models/nobody/load", _FOREIGN),
    ]
    own = [_post("models/spare/unload", {}), _post("models/spare/load", {}), _post("index", {})]

    async def act(index: int) -> None:
        turns = foreign if index else own
        for request in turns:
            await target.ask(request)

    await target.crowd(2, act, pause=0.5)
    for name in ("tiny", "cifar10"):
        await target.ask(_post(f"models/{name}/load", {}))
