"""Access to a server that asks for keys: the keys, their file, and the check of every request."""

import contextlib
import fcntl
import os
import re
import secrets
import stat
import tempfile
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field
from hashlib import sha256
from hmac import compare_digest
from pathlib import Path
from typing import Literal, get_args

from server.errors import ServiceError, UnknownKeyError, shown

# API keys: 256 random bits each, of which the server knows SHA-256.
#
# That is enough. Slow hashes with salt (scrypt) protect passwords, which people choose and attackers can
# guess; 256 random bits cannot be guessed, however fast the hash, and no two keys are alike. A slow hash
# would cost every request tens of milliseconds and megabytes, also a request with a wrong key.

#: What a key permits. ``admin``: everything; ``infer``: everything but to change what is served.
Role = Literal["infer", "admin"]
ROLES: tuple[Role, ...] = get_args(Role)

# Tools that look for secrets in logs and commits recognise a key by its prefix.
_PREFIX = "lsk_"
_KEY_BYTES = 32


def new_key() -> str:
    """Return a new key: 47 characters that need no quotes in a shell or a header."""
    return _PREFIX + secrets.token_urlsafe(_KEY_BYTES)


def digest(key: bytes) -> bytes:
    """Return the 32 bytes that the server keeps of ``key``."""
    return sha256(key).digest()


@dataclass(frozen=True)
class Key:
    """One key as the server knows it; ``digest``: 32 bytes."""

    name: str
    role: Role
    digest: bytes = field(repr=False)


class Keys:
    """All keys that are valid now. A search takes the same time whichever key it finds, or none."""

    def __init__(self, keys: Sequence[Key]) -> None:
        self._keys = tuple(keys)

    def __len__(self) -> int:
        return len(self._keys)

    def find(self, presented: bytes) -> Key | None:
        """Return the key that a client has ``presented``; None where it is none of these."""
        wanted, match = digest(presented), None
        for key in self._keys:
            if compare_digest(key.digest, wanted):
                match = key
        return match


# The file of keys: a line each, ``NAME ROLE sha256:HEX``. # begins a comment.
#
# No error quotes a line: a user may have put a key itself into it by mistake.

#: The number is limited because every request is compared with all keys.
MOST_KEYS = 1000
_MOST_BYTES = 1 << 18
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
_DIGEST = re.compile(r"sha256:([0-9a-f]{64})")


class KeyFileError(ServiceError):
    """The file of keys cannot be read or written, or is wrong; the message has file and line."""


def parse_keys(text: str) -> tuple[Key, ...]:
    """Return the keys that ``text`` has, in its order.

    Raises:
        ValueError: a line is not as it should be, or repeats the name or the key of another one.
    """
    keys: list[Key] = []
    lines: dict[str | bytes, int] = {}
    for number, line in enumerate(text.splitlines(), 1):
        if not line.strip() or line.lstrip().startswith("#"):
            continue
        key = _parsed(number, line)
        for part in (key.name, key.digest):
            if lines.setdefault(part, number) != number:
                raise ValueError(f"{number}: the name or the key of line {lines[part]} again")
        keys.append(key)
        if len(keys) > MOST_KEYS:
            raise ValueError(f"{number}: over {MOST_KEYS} keys")
    return tuple(keys)


def _parsed(number: int, line: str) -> Key:
    words = line.split()
    if len(words) != 3:
        raise ValueError(f"{number}: not three words, NAME ROLE sha256:HEX")
    name, role, hashed = words
    if not is_name(name):
        raise ValueError(f"{number}: the name is not 1 to 64 of A-Z a-z 0-9 . _ -")
    if not (matched := _DIGEST.fullmatch(hashed)):
        raise ValueError(f"{number}: the hash is not sha256: and 64 digits of 0-9 a-f")
    known = next((each for each in ROLES if each == role), None)
    if known is None:
        raise ValueError(f"{number}: the role is not {' or '.join(ROLES)}")
    return Key(name, known, bytes.fromhex(matched[1]))


def is_name(text: str) -> bool:
    """Return whether a key may be called ``text``."""
    return _NAME.fullmatch(text) is not None


def written(key: Key) -> str:
    """Return the line of ``key``."""
    return f"{key.name} {key.role} sha256:{key.digest.hex()}\n"


def read_keys(path: Path) -> Keys:
    """Return the keys of the file ``path``.

    Raises:
        KeyFileError: it cannot be read, all users may write to it, or it is not as it should be.
    """
    return Keys(_parsed_file(path, _read(path)))


def list_keys(path: Path) -> tuple[Key, ...]:
    """Return the keys of the file ``path``, in its order; raises as ``read_keys``."""
    return _parsed_file(path, _read(path))


def add_key(path: Path, name: str, role: Role) -> str:
    """Add a new key to the file ``path``, which is made if there is none; return the key.

    Raises:
        KeyFileError: as ``read_keys``, the name is taken or is no name, or the file cannot be written.
    """
    if not is_name(name):
        raise KeyFileError(f"{shown(name)}: a name has 1 to 64 of A-Z a-z 0-9 . _ -")
    with _alone(path):
        text = _read(path) if path.exists() else ""
        keys = _parsed_file(path, text)
        if any(key.name == name for key in keys):
            raise KeyFileError(f"{path}: there is a key {name!r} already")
        if len(keys) == MOST_KEYS:
            raise KeyFileError(f"{path}: it has {MOST_KEYS} keys, more are not read")
        new = new_key()
        text += "\n" if text and not text.endswith("\n") else ""
        _replace(path, text + written(Key(name, role, digest(new.encode()))))
    return new


def remove_key(path: Path, name: str) -> None:
    """Take the key ``name`` out of the file ``path``; all other lines stay as they are.

    Raises:
        KeyFileError: as ``read_keys``, there is no such key, or the file cannot be written.
    """
    with _alone(path):
        text = _read(path)
        if all(key.name != name for key in _parsed_file(path, text)):
            raise KeyFileError(f"{path}: no key {shown(name)}")
        lines = text.splitlines(keepends=True)
        _replace(path, "".join(line for line in lines if line.split()[:1] != [name]))


def _parsed_file(path: Path, text: str) -> tuple[Key, ...]:
    try:
        return parse_keys(text)
    except ValueError as exc:
        raise KeyFileError(f"{path}:{exc}") from exc


def _read(path: Path) -> str:
    try:
        # Without O_NONBLOCK, opening a pipe that has no writer would wait for one.
        number = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        with os.fdopen(number, "rb") as file:
            status = os.fstat(file.fileno())
            if not stat.S_ISREG(status.st_mode):
                raise KeyFileError(f"{path}: not a file")
            if status.st_mode & stat.S_IWOTH:
                raise KeyFileError(f"{path}: everybody may write to it; chmod o-w")
            data = file.read(_MOST_BYTES + 1)
    except OSError as exc:
        raise KeyFileError(f"{path}: {exc.strerror or exc}") from exc
    if len(data) > _MOST_BYTES:
        raise KeyFileError(f"{path}: longer than {_MOST_BYTES} bytes")
    try:
        return data.decode("ascii")
    except UnicodeDecodeError as exc:
        raise KeyFileError(f"{path}: not ASCII text") from exc


@contextlib.contextmanager
def _alone(path: Path) -> Iterator[None]:
    """Lock the folder of ``path``, so that another command that changes the file waits."""
    try:
        folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError as exc:
        raise KeyFileError(f"{path}: {exc.strerror or exc}") from exc
    try:
        fcntl.flock(folder, fcntl.LOCK_EX)
        yield
    finally:
        os.close(folder)


def _replace(path: Path, text: str) -> None:
    """Write ``text`` to ``path``, all of it or nothing; owner, group and mode of the file stay."""
    try:
        path = path.resolve()
        number, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
        try:
            with os.fdopen(number, "w", encoding="ascii") as file:
                if path.exists():
                    status = path.stat()
                    os.fchown(number, status.st_uid, status.st_gid)
                    os.fchmod(number, stat.S_IMODE(status.st_mode))
                file.write(text)
                file.flush()
                os.fsync(number)
            Path(name).replace(path)
        except BaseException:
            Path(name).unlink(missing_ok=True)
            raise
    except OSError as exc:
        raise KeyFileError(f"{path}: {exc.strerror or exc}") from exc


# With keys, each request needs one, but for probes of health and files of the page.

#: Which requests are admitted. ``open``: all. Health probes have no keys and are told nothing secret; the
#: files of the page are in every installation, and the page itself asks for a key. ``metrics``: all where
#: the setting public_metrics is on, else those with a key. ``infer``: those with a key. ``form``: the same,
#: but the key may also be a field of the body, so the handler that reads the body checks it, and then how
#: long the body is.
Admitted = Literal["open", "metrics", "form", "infer"]
_BEARER = re.compile(r"bearer +(\S+)", re.IGNORECASE)


class Access:
    """The keys that are valid, if the server asks for any; ``public_metrics``: /metrics needs none."""

    def __init__(self, path: Path | None = None, public_metrics: bool = False) -> None:
        """Read the keys.

        Raises:
            KeyFileError: the file cannot be read, is wrong, or has no keys.
        """
        self._path = path
        #: Which requests need no key; None: those that ask for no route.
        self.keyless: Collection[Admitted | None] = (
            {*get_args(Admitted), None}
            if path is None
            else {"open", "form", *(("metrics",) if public_metrics else ())}
        )
        self._keys: Keys | None = None
        #: How many requests had no key, or a wrong one.
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
        """Read the file again; after a file without keys all requests that need a key are refused.

        Raises:
            KeyFileError: the file cannot be read or is wrong; the keys are those of before.
        """
        if self._path is not None:
            self._keys = read_keys(self._path)

    def key(self, authorization: list[str], beside: str | None = None) -> Key:
        """Return the key that a request presents in these Authorization headers.

        A missing or malformed key is looked up as well, so that it takes as long; it is counted.
        ``beside``: the key from the body, which counts where there are no such headers.

        Raises:
            UnknownKeyError: no key was presented, or a wrong one.
        """
        matched = _BEARER.fullmatch(authorization[0]) if len(authorization) == 1 else None
        presented = matched[1] if matched else "" if authorization else beside or ""
        assert self._keys is not None
        key = self._keys.find(presented.encode("latin-1", "replace"))
        if key is None:
            self.refused += 1
            raise UnknownKeyError(bool(authorization or beside), beside is not None)
        return key
