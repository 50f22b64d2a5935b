"""Messages to systemd about the service (sd_notify), and what the service reads again on SIGHUP.

Written out here because the packages do not fit: sdnotify was last released in 2017, and
systemd-python and cysystemd bind libsystemd; the protocol itself is one datagram per message.
"""

import asyncio
import logging
import os
import socket
import time
from collections.abc import Awaitable, Callable, Mapping
from typing import Self

from models.errors import printable

# systemd drops a message of more than 4096 bytes; a character takes four at most.
_LONGEST = 900

_log = logging.getLogger(__name__)


class Notifier:
    """Sends the state of this process to its service manager.

    Without an address every method does nothing. No method raises on a socket error: the first
    failed message is logged as a warning, later ones are dropped silently. A message is
    delivered or given up within a second.
    """

    def __init__(self, address: str | None, watchdog_interval_seconds: float | None) -> None:
        self._address = address
        #: Half of the manager's watchdog limit; None when this process is not watched.
        self.watchdog_interval_seconds = watchdog_interval_seconds if address else None
        self._warned = False

    @classmethod
    def from_environment(cls, environ: Mapping[str, str]) -> Self:
        """Read NOTIFY_SOCKET, WATCHDOG_USEC and WATCHDOG_PID; an absent or bad value is off."""
        return cls(environ.get("NOTIFY_SOCKET") or None, _watchdog_interval(environ))

    def ready(self, status: str) -> None:
        """Report that start-up is complete, with a line for ``systemctl status``."""
        self._send(f"READY=1\nSTATUS={_line(status)}")

    def status(self, text: str) -> None:
        """Replace the line that ``systemctl status`` shows."""
        self._send(f"STATUS={_line(text)}")

    def starting(self, status: str, *, more_seconds: float) -> None:
        """Report that start-up goes on: it may take ``more_seconds`` from now, whatever the unit says."""
        usec = int(more_seconds * 1e6)
        self._send(f"EXTEND_TIMEOUT_USEC={usec}\nSTATUS={_line(status)}")

    def reloading(self) -> None:
        """Report that what is served is read again; ``ready`` says when that is done."""
        usec = time.monotonic_ns() // 1000
        self._send(f"RELOADING=1\nMONOTONIC_USEC={usec}")

    def stopping(self) -> None:
        """Report that shutdown has begun."""
        self._send("STOPPING=1")

    def watchdog(self) -> None:
        """Report that the process is alive; due at least once per watchdog limit."""
        self._send("WATCHDOG=1")

    def _send(self, message: str) -> None:
        if self._address is None:
            return
        # A leading '@' stands for the NUL byte that starts a name in the abstract namespace.
        address = "\0" + self._address[1:] if self._address.startswith("@") else self._address
        try:
            with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender:
                sender.settimeout(1.0)
                sender.sendto(message.encode(), address)
        except OSError as error:
            if not self._warned:
                self._warned = True
                _log.warning("cannot notify the service manager at %s: %s", self._address, error)


async def beat(notifier: Notifier, fault: Callable[[], str]) -> None:
    """Send the watchdog heartbeat while ``fault()`` is empty; runs until cancelled.

    A process with a fault that stays says which and is silent, so the service manager restarts it. An
    exception from ``fault`` ends the heartbeat and propagates.
    """
    interval = notifier.watchdog_interval_seconds
    if interval is None:
        await asyncio.Event().wait()
        return
    reported = ""
    while True:
        reason = fault()
        if not reason:
            notifier.watchdog()
        elif reason != reported:
            _log.error("no heartbeat for the service manager: %s", reason)
            notifier.status(f"no heartbeat: {reason}")
        reported = reason
        await asyncio.sleep(interval)


def _line(text: str) -> str:
    """Return ``text`` as one line, since another one would be a message of its own, of bounded length."""
    line = printable(" ".join(text.splitlines()))
    return line if len(line) <= _LONGEST else f"{line[:_LONGEST]}..."


def _watchdog_interval(environ: Mapping[str, str]) -> float | None:
    try:
        limit_usec = int(environ["WATCHDOG_USEC"])
        watched_pid = int(environ.get("WATCHDOG_PID") or os.getpid())
    except (KeyError, ValueError):
        return None
    return limit_usec / 2e6 if limit_usec > 0 and watched_pid == os.getpid() else None


# Reading again what has changed, when told to: keys, certificate, models.

Step = Callable[[], Awaitable[object]]


class Reloading:
    """Takes all ``steps``, by what they read, after each SIGHUP; ``describe``: what is served then.

    Steps do not wait for each other: models take minutes, but a key that was removed must be refused soon.
    A step that is asked for while it runs is taken once more, since it may have read older files.
    """

    def __init__(
        self, steps: Mapping[str, Step], notifier: Notifier, describe: Callable[[], str]
    ) -> None:
        self._steps = steps
        self._notifier = notifier
        self._describe = describe
        self._asked = {what: asyncio.Event() for what in steps}
        self._taking: set[str] = set()
        self._failed: set[str] = set()
        self._tasks: list[asyncio.Task[None]] = []

    def ask(self) -> None:
        """Ask for all steps; they are taken between ``begin`` and ``end``."""
        for asked in self._asked.values():
            asked.set()
        if self._tasks:
            self._notifier.reloading()

    def begin(self) -> None:
        """Take steps from now on, also those that were asked for before."""
        if self._is_asked():
            self._notifier.reloading()
        self._tasks = [asyncio.create_task(self._follow(what)) for what in self._steps]

    def end(self) -> None:
        """Take no more steps."""
        for task in self._tasks:
            task.cancel()
        self._tasks = []

    def _is_asked(self) -> bool:
        return any(asked.is_set() for asked in self._asked.values())

    async def _follow(self, what: str) -> None:
        """Take one step after each SIGHUP; the last one that ends logs that all has been read."""
        asked = self._asked[what]
        while True:
            await asked.wait()
            asked.clear()
            self._taking.add(what)
            await self._take(what)
            self._taking.remove(what)
            if not self._taking and not self._is_asked():
                self._notifier.ready(self._describe())
                self._say_what_was_read()

    async def _take(self, what: str) -> None:
        """Take one step; after an error the server serves on with what was read before."""
        self._failed.discard(what)
        try:
            await self._steps[what]()
        except Exception as exc:  # noqa: BLE001  the server serves on
            # Here: this module is imported before libraries are, whose memory is watched.
            from server.faults import traceable

            self._failed.add(what)
            _log.error("%s not read again: %s", what, exc, exc_info=traceable(exc))
        else:
            _log.info("%s read again", what)

    def _say_what_was_read(self) -> None:
        if self._failed:
            failed = ", ".join(sorted(self._failed))
            _log.warning("not read again, and as before: %s; %s", failed, self._describe())
        else:
            _log.info("all has been read again: %s", self._describe())
