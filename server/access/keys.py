"""API keys: 256 random bits each, of which the server knows SHA-256.

That is enough. Slow hashes with salt (scrypt) make it dear to try words that people choose; nobody tries
256 random bits, however fast the hash, and no two keys are alike. A slow one would cost every request tens
of milliseconds and megabytes, those with a wrong key first of all.
"""

import secrets
from collections.abc import Sequence
from dataclasses import dataclass, field
from hashlib import sha256
from hmac import compare_digest
from typing import Literal, get_args

#: What a key permits. ``admin``: everything; ``infer``: everything but to change what is served.
Role = Literal["infer", "admin"]
ROLES: tuple[Role, ...] = get_args(Role)

# Says what it is where it turns up: tools that look for secrets in logs and commits find it by this.
_PREFIX = "lsk_"
_KEY_BYTES = 32


def new_key() -> str:
    """Return a key that nobody has: 47 characters that need no quotes in a shell or a header."""
    return _PREFIX + secrets.token_urlsafe(_KEY_BYTES)


def digest(key: bytes) -> bytes:
    """Return the 32 bytes that are kept of ``key``."""
    return sha256(key).digest()


@dataclass(frozen=True)
class Key:
    """One key as the server knows it; ``digest``: 32 bytes."""

    name: str
    role: Role
    digest: bytes = field(repr=False)


class Keys:
    """All keys that are valid now; the same work whether one fits, and which."""

    def __init__(self, keys: Sequence[Key]) -> None:
        self._keys = tuple(keys)

    def __len__(self) -> int:
        return len(self._keys)

    def find(self, presented: bytes) -> Key | None:
        """Return the key that a client has ``presented``, None: it is none of these."""
        wanted, found = digest(presented), None
        for key in self._keys:
            if compare_digest(key.digest, wanted):
                found = key
        return found
