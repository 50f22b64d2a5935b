"""``layerstream doctor``: whether this machine is fit to serve, before the first request."""

import os
import stat
from collections.abc import Iterator
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
from pipeline.devices.base import Device, DeviceError
from server.access import list_keys
from server.errors import ServiceError
from server.memory.process_memory import free_bytes, machine_bytes, memory_limit, process_bytes
from server.operation.process import process_memory
from server.settings.sizes import format_size
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
    device_name: DeviceName = "cpu",
    threads: Threads = None,
    as_json: Json = False,
) -> None:
    """Check this machine before it serves: disks, memory, processor, clocks, limits, files.

    Each look has a verdict, a reason and a remedy. Exit status 1 where one fails. Nothing is changed.
    Reads of packs are timed, which takes a moment for each.
    """
    all_findings = list(_machine(threads))
    base = process_bytes(max(len(paths or ()), 1), grpc=grpc_port is not None)
    needed = _needed(budget, memory, base)
    all_findings += [
        *check_memory(needed),
        check_open_files(max_connections),
        check_port("port", host, port, "--port"),
        check_keys(keys),
        check_certificate(tls_certificate, tls_key),
    ]
    if grpc_port is not None:
        all_findings.append(check_port("gRPC port", host, grpc_port, "--grpc-port"))
    try:
        device = open_named(context, device_name, threads)
        all_findings += _gpu(device, paths or [])
        packs = [each for path in paths or () for each in checks.findings(path, device)]
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
