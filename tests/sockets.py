"""What tests of sockets need of the kernel."""

import socket

import pytest

from benchmarks.load.kept import TIMESTAMP


def _is_stamped() -> bool:
    """Return whether the kernel says when bytes came; the one that qemu makes up does not."""
    with socket.socket() as tried:
        try:
            tried.setsockopt(socket.SOL_SOCKET, TIMESTAMP, 1)
        except OSError:
            return False
        return True


needs_stamps = pytest.mark.skipif(not _is_stamped(), reason="no time stamps of sockets here")
