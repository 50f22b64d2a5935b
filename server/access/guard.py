"""With keys, nobody is answered without one, but probes of health and files of the page."""

import re
from pathlib import Path
from typing import Literal

from server.access.key_file import KeyFileError, read_keys
from server.access.keys import Key, Keys
from server.errors import ServiceError

#: To whom something is told. ``open``: everybody. Those who ask whether a server lives have no keys, and
#: learn nothing but that; the page asks for a key itself: its files are in every installation. ``metrics``:
#: everybody where a setting says so. ``infer``: who has a key. ``form``: the same, and it may be in
#: the body, so that whoever reads that asks for it.
Admitted = Literal["open", "metrics", "form", "infer"]
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
        self._open = {"open", "form"} | ({"metrics"} if public_metrics else set())
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

    def admits(self, to: Admitted | None) -> bool:
        """Return whether everybody may ask for what is told ``to`` these; None: for what there is not."""
        return self._keys is None or to in self._open

    def key(self, authorization: list[str], beside: str | None = None) -> Key:
        """Return the key that a request presents in these Authorization headers.

        Who presents nothing, or what is no key, is looked up as well: it takes as long, and is counted.
        ``beside``: what is presented elsewhere where there are no such headers.

        Raises:
            UnknownKeyError: none, or one that is none.
        """
        matched = _BEARER.fullmatch(authorization[0]) if len(authorization) == 1 else None
        presented = matched[1] if matched else "" if authorization else beside or ""
        assert self._keys is not None
        found = self._keys.find(presented.encode("latin-1", "replace"))
        if found is None:
            self.refused += 1
            raise UnknownKeyError(bool(authorization or beside), beside is not None)
        return found


class UnknownKeyError(ServiceError):
    """No key was presented, or (``given``) one that is not valid; ``in_form``: it may be in the body."""

    def __init__(self, given: bool, in_form: bool = False) -> None:
        wanted = "a key is wanted: Authorization: Bearer KEY"
        also = ", or the field api_key of the form, before the image" if in_form else ""
        super().__init__("this key is not valid" if given else wanted + also)
        #: What a client is asked for, as WWW-Authenticate has it.
        self.challenge = f'{_REALM}, error="invalid_token"' if given else _REALM
