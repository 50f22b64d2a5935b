"""``layerstream doctor``: whether this machine is fit to serve, before the first request."""

import contextlib
import os
import pwd
import stat
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from cli import arguments, checks
from cli.arguments import DeviceName, Json, Threads, open_named, size
from cli.checks import ROOT, Finding, worst
from cli.commands import versions
from cli.device import cuda_figures
from cli.printing.output import print_json, print_table, say
from models.errors import ModelError
from models.packs.folders import find_pack
from models.sizes import format_size
from pipeline.devices.base import Device, DeviceError
from server.access import list_keys
from server.errors import ServiceError
from server.memory.process_memory import free_bytes, machine_bytes, memory_limit, process_bytes
from server.operation.pressure_events import PressureError, is_off, open_events
from server.operation.process import process_memory
from server.repository.on_disk import PACK_FILES
from server.transport.certificate import Certificate, CertificateError
from server.transport.limits import allowed_files
from server.transport.listener import PortError, listen

_FAILED = 1


def doctor(
    context: typer.Context,
    paths: Annotated[
        list[Path] | None,
        typer.Argument(
            metavar="[PACK...]", help="Packs to be served: REPOSITORY/NAME.", show_default=False
        ),
    ] = None,
    budget: arguments.Budget = None,
    memory: arguments.Memory = None,
    host: arguments.Host = "127.0.0.1",
    port: arguments.Port = 8080,
    grpc_port: arguments.GrpcPort = None,
    max_connections: arguments.MaxConnections = 256,
    keys: arguments.Keys = None,
    tls_certificate: arguments.TlsCertificate = None,
    tls_key: arguments.TlsKey = None,
    full: Annotated[
        bool,
        typer.Option("--full", help="Verify all checksums of packs, also where that takes long."),
    ] = False,
    user: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="Who serves. Default: the user of layerstream.service where it is installed.",
        ),
    ] = None,
    device_name: DeviceName = "cpu",
    threads: Threads = None,
    as_json: Json = False,
) -> None:
    """Check this machine before it serves. It looks at disks, memory, processor, clocks, limits, files.

    Each look has a verdict, a reason and a remedy. Exit status 1 where one fails. Nothing is changed.
    Reads of packs are timed, which takes a moment for each.
    """
    all_findings = list(_machine(threads))
    base = process_bytes(max(len(paths or ()), 1), grpc=grpc_port is not None)
    needed = _needed(budget, memory, base)
    all_findings += [
        *check_memory(needed),
        check_pressure(),
        check_open_files(max_connections),
        check_port("port", host, port, "--port"),
        check_keys(keys),
        check_certificate(tls_certificate, tls_key),
        *check_user(user or service_user(ROOT), paths or (), (keys, tls_certificate, tls_key)),
    ]
    if grpc_port is not None:
        all_findings.append(check_port("gRPC port", host, grpc_port, "--grpc-port"))
    try:
        device = open_named(context, device_name, threads)
        all_findings += _gpu(device, paths or [])
        packs = [each for path in paths or () for each in checks.findings(path, device, full=full)]
        all_findings += packs
        if worst(packs) != "fail":  # what cannot be read has no size
            all_findings += checks.fitting(
                paths or (), None if needed is None else needed - base, device
            )
    except DeviceError as exc:
        all_findings.append(
            Finding("device", "fail", str(exc), "layerstream device cuda says more")
        )
    verdict = worst(all_findings)
    if as_json:
        findings = [asdict(each) for each in all_findings]
        print_json({"version": versions(), "verdict": verdict, "findings": findings})
    else:
        _print(all_findings)
    if verdict == "fail":
        raise typer.Exit(_FAILED)


def _machine(threads: int | None) -> Iterator[Finding]:
    told = checks.threads(ROOT, threads)  # first: how many threads there are is decided once
    yield from checks.processor(ROOT)
    yield checks.cores_online(ROOT)
    yield told
    yield checks.other_work()
    yield from checks.clocks(ROOT)
    yield from checks.pages(ROOT)
    yield checks.heat(ROOT)
    yield from checks.power(ROOT)


def _needed(budget: str | None, memory: str | None, base: int) -> int | None:
    """Return what a service would take in all, ``base`` beside its budget; None: it is not said."""
    if budget is not None and memory is not None:
        raise typer.BadParameter("give --budget or --memory")
    within = size(budget, "--budget")
    return size(memory, "--memory") if within is None else within + base


def _gpu(device: Device, paths: list[Path]) -> Iterator[Finding]:
    if not device.gpu:
        return
    folder = paths[0] if paths else Path()
    figures = cuda_figures(device, folder)
    yield Finding("device", "ok", device.gpu)
    kinds = figures["memory_kinds"]
    working = [kind for kind, why in kinds.items() if not why]
    said = "; ".join(f"{kind}: {why or 'works'}" for kind, why in kinds.items())
    if working:
        yield Finding("memory kinds", "ok", said)
    else:
        yield Finding("memory kinds", "fail", said, "keep packs on a disk that takes O_DIRECT")


def _print(findings: list[Finding]) -> None:
    print_table(
        versions(),
        ("verdict", "check", "what was found"),
        ((each.verdict, each.check, each.reason) for each in findings),
    )
    for each in findings:
        if each.remedy:
            say(f"{each.check}: {each.remedy}")


# Looks at what a service needs of the system: memory, files, its port, keys and certificate.

_MIB = 1 << 20
# Of what a service takes, what the kernel has for a group before anything runs there.
_SLACK = 16


def check_memory(needed: int | None) -> Iterator[Finding]:
    """Whether the machine, and the control group, have ``needed`` bytes; None: it is not said how much."""
    limit, (most, owner) = memory_limit(), machine_bytes()
    free = free_bytes() + process_memory().anonymous  # this command ends before
    there = f"{format_size(free)} of {format_size(most)}" if most else format_size(free)
    group = "no limit" if limit is None else f"a limit of {format_size(limit.limit_bytes)}"
    if needed is None:
        yield Finding("control group", "ok", f"{group}; --memory or --budget is held against it")
        yield Finding("free memory", "ok", there)
        return
    wants = f"a service takes up to {format_size(needed)}"
    if most and needed > most:
        # In a unit of systemd's: it knows M, and no MiB.
        remedy = f"MemoryMax={-(-needed // _MIB)}M" if limit is not None else "a smaller --memory"
        yield Finding(
            "control group", "fail", f"{wants}, more than {owner}", f"{remedy}, or less for it"
        )
    else:
        yield Finding("control group", "ok", f"{group}; {wants}")
    if needed > free + needed // _SLACK:
        remedy = "end what takes it, or give less"
        yield Finding("free memory", "warn", f"{there}; {wants}", remedy)
    else:
        yield Finding("free memory", "ok", f"{there}; {wants}")


def check_pressure(environ: Mapping[str, str] = os.environ) -> Finding:
    """What would have a server started here give memory back while the system lacks it."""
    if is_off(environ):
        return Finding(
            "memory pressure", "ok", "systemd asks not to follow it (MEMORY_PRESSURE_WATCH)"
        )
    try:
        events = open_events(environ)
    except PressureError as exc:
        return Finding(
            "memory pressure", "warn", f"headroom alone: {exc}", "MemoryPressureWatch=auto"
        )
    if events is None:
        return Finding("memory pressure", "ok", "headroom alone: the kernel reports none (no PSI)")
    with contextlib.closing(events):
        return Finding("memory pressure", "ok", f"events of {events.name}, and headroom")


def check_open_files(connections: int) -> Finding:
    """Whether so many connections find a place."""
    fit, _ = allowed_files(connections)
    if fit < connections:
        remedy = f"LimitNOFILE={2 * connections + 1024} in the unit, or ulimit -n"
        return Finding("open files", "warn", f"room for {fit} of {connections} connections", remedy)
    return Finding("open files", "ok", f"room for {connections} connections")


def check_port(name: str, host: str, number: int, flag: str) -> Finding:
    """Whether it can be listened on."""
    try:
        listen(host, number, flag).close()
    except PortError as exc:
        remedy = "another number, or end what listens there (ss -ltnp)"
        return Finding(name, "fail", str(exc), remedy)
    return Finding(name, "ok", f"{host}:{number} is free")


def check_keys(file: Path | None) -> Finding:
    """Whether the file of keys can be read, and by no other user."""
    if file is None:
        return Finding("keys", "ok", "none asked for: for this machine alone, or behind a proxy")
    try:
        count, mode = len(list_keys(file)), stat.S_IMODE(file.stat().st_mode)
    except (ServiceError, ModelError, OSError) as exc:
        made = "mend it, or give another" if file.exists() else f"layerstream key add {file} NAME"
        return Finding("keys", "fail", str(exc), made)
    if not count:
        return Finding("keys", "fail", f"{file}: none in it", f"layerstream key add {file} NAME")
    if mode & 0o007:
        return Finding("keys", "warn", f"{file}: {count}; anybody may read it", f"chmod 640 {file}")
    return Finding("keys", "ok", f"{file}: {count}")


def check_certificate(file: Path | None, key: Path | None) -> Finding:
    """Whether certificate and key can be used, and the key be read by no other user."""
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


# Looks with the eyes of the service, which may read less than who runs this.

_UNITS = ("etc/systemd/system", "usr/lib/systemd/system", "lib/systemd/system")
_UNIT = "layerstream.service"


def service_user(root: Path) -> str | None:
    """Return the user of the unit in the system below ``root``; None: it is not installed, or has none."""
    for folder in _UNITS:
        unit = root / folder / _UNIT
        drop_ins = sorted(unit.with_name(f"{_UNIT}.d").glob("*.conf"), reverse=True)
        for file in (*drop_ins, unit):
            with contextlib.suppress(OSError):
                lines = file.read_text("utf-8", "replace").splitlines()
                users = [
                    line.partition("=")[2].strip() for line in lines if line.startswith("User=")
                ]
                if users and users[-1]:
                    return users[-1]
    return None


def check_user(
    name: str | None, packs: Iterable[Path], files: Iterable[Path | None]
) -> Iterator[Finding]:
    """Whether the user ``name`` (None: of no service) may read ``files`` and all files of ``packs``."""
    if name is None:
        return
    try:
        user = pwd.getpwnam(name)
    except KeyError:
        yield Finding("user", "fail", f"there is no user {name}", f"useradd --system {name}")
        return
    if os.geteuid() not in (0, user.pw_uid):
        here = pwd.getpwuid(os.geteuid()).pw_name
        yield Finding("user", "warn", f"this looks as {here}, and {name} serves", f"sudo -u {name}")
        return
    needed = [*(file for pack in packs for file in _files_of(pack)), *filter(None, files)]
    with _acting_as(user):
        refused = {file: reason for file in needed if (reason := _refusal(file))}
    for file, reason in list(refused.items())[:_MAX_NAMED]:
        hint = f"chgrp {name} {file} && chmod g+r {file}; folders above it need g+x"
        yield Finding("user", "fail", f"{name} cannot read {file}: {reason}", hint)
    if not refused:
        yield Finding("user", "ok", f"{name} reads all of {len(needed)} files")


#: Of files that cannot be read, so many are named.
_MAX_NAMED = 3


def _files_of(pack: Path) -> Iterator[Path]:
    """Yield the files of the pack in ``pack`` that a service opens."""
    try:
        folder = find_pack(pack)
    except (ModelError, OSError):
        return  # another look says so
    yield from (folder / name for name in PACK_FILES if (folder / name).exists())


def _refusal(file: Path) -> str:
    """Return the system's words if this process cannot read ``file``; empty: it can."""
    try:
        os.close(os.open(file, os.O_RDONLY | os.O_CLOEXEC))
    except OSError as exc:
        return exc.strerror or str(exc)
    return ""


@contextlib.contextmanager
def _acting_as(user: pwd.struct_passwd) -> Iterator[None]:
    """Let root open files as ``user`` does, in its groups; another user is ``user`` already."""
    if os.geteuid() != 0:
        yield
        return
    groups, group = os.getgroups(), os.getegid()
    os.setgroups(os.getgrouplist(user.pw_name, user.pw_gid))
    os.setegid(user.pw_gid)
    os.seteuid(user.pw_uid)
    try:
        yield
    finally:
        os.seteuid(0)
        os.setegid(group)
        os.setgroups(groups)
