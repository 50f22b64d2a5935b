"""The guard: with keys, nobody gets past without one, but probes of health and files of the page."""

import re
from pathlib import Path

from starlette.datastructures import Headers
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Receive, Scope, Send

from server.access.key_file import KeyFileError, read_keys
from server.access.keys import Key, Keys

#: Those who ask whether a server lives have no keys, and learn nothing but that. The page asks for a key
#: itself: its files are in every installation.
OPEN_PATHS = frozenset({"/v2/health/live", "/v2/health/ready", "/"})
_OPEN_FOLDER = "/page/files/"
_METRICS = "/metrics"
_BEARER = re.compile(r"bearer +(\S+)", re.IGNORECASE)
_REALM = 'Bearer realm="layerstream"'


class Access:
    """Which keys are valid, if any are asked for; ``public_metrics``: not for /metrics."""

    def __init__(self, path: Path | None = None, public_metrics: bool = False) -> None:
        """Read the keys.

        Raises:
            KeyFileError: the file cannot be read, is wrong, or has no keys.
        """
        self._path = path
        self._open = OPEN_PATHS | {_METRICS} if public_metrics else OPEN_PATHS
        self._keys: Keys | None = None
        #: Requests without a key, or with one that is none.
        self.refused = 0
        self.reload()
        if path is not None and not len(self):
            raise KeyFileError(f"{path}: no keys in it, so nobody could use the server")

    @property
    def wants_keys(self) -> bool:
        return self._keys is not None

    def __len__(self) -> int:
        return 0 if self._keys is None else len(self._keys)

    def reload(self) -> None:
        """Read the file again; a file without keys lets nobody in any more.

        Raises:
            KeyFileError: the file cannot be read or is wrong; the keys are those of before.
        """
        if self._path is not None:
            self._keys = read_keys(self._path)

    def admits(self, path: str) -> bool:
        """Return whether everybody may ask for ``path``."""
        return self._keys is None or path in self._open or path.startswith(_OPEN_FOLDER)

    def key(self, authorization: list[str]) -> Key | None:
        """Return the key that a request presents in these Authorization headers, None: none that is valid.

        Who presents nothing, or what is no key, is looked up as well: it takes as long.
        """
        matched = _BEARER.fullmatch(authorization[0]) if len(authorization) == 1 else None
        assert self._keys is not None
        return self._keys.find(matched[1].encode("latin-1", "replace") if matched else b"")


class Guard:
    """Lets requests pass that everybody may make, and those with a key: ``scope["key"]`` from then on."""

    def __init__(self, app: ASGIApp, access: Access) -> None:
        self._app = app
        self._access = access

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request."""
        if not self._access.admits(scope["path"]):
            given = Headers(scope=scope).getlist("authorization")
            key = self._access.key(given)
            if key is None:
                self._access.refused += 1
                await _refusal(bool(given))(scope, receive, send)
                return
            scope["key"] = key
        await self._app(scope, receive, send)


def why_refused(given: bool) -> str:
    """Return what is said to who has ``given`` a wrong key, or none."""
    return "this key is not valid" if given else "a key is wanted: Authorization: Bearer KEY"


def _refusal(given: bool) -> JSONResponse:
    """Return the answer to who has ``given`` a wrong key, or none."""
    challenge = f'{_REALM}, error="invalid_token"' if given else _REALM
    return JSONResponse({"error": why_refused(given)}, 401, {"WWW-Authenticate": challenge})
