"""``python -m tests.deploy.telling_server serve ...``: a server that prints whose each request is."""

from typing import Any

from cli.process import main
from server.requests.asgi_client import AsgiClient

_init = AsgiClient.__init__


def _printed(self: AsgiClient, scope: Any, receive: Any, send: Any) -> None:
    _init(self, scope, receive, send)
    print(scope["path"], self.owner or "-", flush=True)


if __name__ == "__main__":
    AsgiClient.__init__ = _printed  # type: ignore[method-assign]
    main()
