"""``python -m tests.deploy.telling_server serve ...``: a server that prints whose each request is."""

from typing import Any

from cli import main
from server.requests.exchange import Exchanges

_exchange = Exchanges.exchange


def _told(self: Exchanges, client: Any, kind: Any = "body") -> Any:
    print(client.head.path, client.owner or "-", flush=True)
    return _exchange(self, client, kind)


if __name__ == "__main__":
    Exchanges.exchange = _told  # type: ignore[method-assign]
    main()
