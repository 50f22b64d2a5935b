"""Looks at what a service needs of the system: memory, files, its port, keys and certificate."""

import os
import stat
from collections.abc import Iterator
from pathlib import Path

from cli.checks.finding import Finding
from cli.printing.sentences import typed
from models.errors import ModelError
from server.access import list_keys
from server.errors import ServiceError
from server.memory.process_memory import free_bytes, machine_bytes, memory_limit
from server.operation.process import process_memory
from server.settings.sizes import format_size
from server.transport.certificate import Certificate, CertificateError
from server.transport.limits import allowed_files
from server.transport.listener import PortError, listen

# Of what a service takes, what the kernel has for a group before anything runs there.
_SLACK = 16


def memory(needed: int | None) -> Iterator[Finding]:
    """Whether the machine, and the control group, have ``needed`` bytes; None: nobody said how much."""
    limit, (most, owner) = memory_limit(), machine_bytes()
    free = free_bytes() + process_memory().anonymous  # this command ends before
    group = "no limit" if limit is None else f"a limit of {format_size(limit.limit_bytes)}"
    if needed is None:
        yield Finding("control group", "ok", f"{group}; --memory or --budget is held against it")
        return
    wants = f"a service takes up to {format_size(needed)}"
    if most and needed > most:
        remedy = f"MemoryMax={typed(needed)}" if limit is not None else "a smaller --memory"
        yield Finding(
            "control group", "fail", f"{wants}, more than {owner}", f"{remedy}, or less for it"
        )
    else:
        yield Finding("control group", "ok", f"{group}; {wants}")
    if needed > free + needed // _SLACK:
        remedy = "end what takes it, or give less"
        yield Finding("free memory", "warn", f"{format_size(free)}; {wants}", remedy)
    else:
        yield Finding("free memory", "ok", format_size(free))


def open_files(connections: int) -> Finding:
    """Whether so many connections find a place."""
    fit, _ = allowed_files(connections)
    if fit < connections:
        remedy = f"LimitNOFILE={2 * connections + 1024} in the unit, or ulimit -n"
        return Finding("open files", "warn", f"room for {fit} of {connections} connections", remedy)
    return Finding("open files", "ok", f"room for {connections} connections")


def port(host: str, number: int) -> Finding:
    """Whether it can be listened on."""
    try:
        listen(host, number).close()
    except PortError as exc:
        return Finding(
            "port", "fail", str(exc), "--port of another, or end who listens there (ss -ltnp)"
        )
    return Finding("port", "ok", f"{host}:{number} is free")


def keys(file: Path | None) -> Finding:
    """Whether the file of keys can be read, and by nobody else."""
    if file is None:
        return Finding("keys", "ok", "none asked for: for this machine alone, or behind a proxy")
    try:
        count, mode = len(list_keys(file)), stat.S_IMODE(file.stat().st_mode)
    except (ServiceError, ModelError, OSError) as exc:
        return Finding("keys", "fail", str(exc), f"layerstream key add {file} NAME")
    if not count:
        return Finding("keys", "fail", f"{file}: none in it", f"layerstream key add {file} NAME")
    if mode & 0o007:
        return Finding("keys", "warn", f"{file}: {count}; anybody may read it", f"chmod 640 {file}")
    return Finding("keys", "ok", f"{file}: {count}")


def certificate(file: Path | None, key: Path | None) -> Finding:
    """Whether certificate and key can be used, and the key be read by nobody else."""
    if file is None:
        return Finding("TLS", "ok", "none asked for: for this machine alone, or behind a proxy")
    try:
        Certificate(file, key)
    except CertificateError as exc:
        return Finding("TLS", "fail", str(exc), "give the certificate in PEM, with its key")
    private = key or file
    if private.stat().st_mode & 0o007:
        return Finding(
            "TLS", "warn", f"{private}: anybody may read the key", f"chmod 640 {private}"
        )
    return Finding("TLS", "ok", os.fspath(file))
