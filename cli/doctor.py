"""``layerstream doctor``: is this machine fit to serve, before anybody asks it."""

from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from cli.arguments import served
from cli.arguments.options import Json, open_named, size
from cli.arguments.served import DeviceName, Threads
from cli.checks import machine, packs, service_needs
from cli.checks.finding import Finding, worst
from cli.checks.machine import ROOT
from cli.device import cuda_figures
from cli.printing.output import print_json, print_table, say
from cli.printing.versions import versions
from pipeline.devices.base import Device, DeviceError
from server.memory.process_memory import process_bytes

_FAILED = 1


def doctor(
    context: typer.Context,
    paths: Annotated[
        list[Path] | None,
        typer.Argument(
            metavar="[PACK...]", help="Packs to be served: REPOSITORY/NAME.", show_default=False
        ),
    ] = None,
    budget: served.Budget = None,
    memory: served.Memory = None,
    host: served.Host = "127.0.0.1",
    port: served.Port = 8080,
    max_connections: served.MaxConnections = 256,
    keys: served.Keys = None,
    tls_certificate: served.TlsCertificate = None,
    tls_key: served.TlsKey = None,
    device_name: DeviceName = "cpu",
    threads: Threads = None,
    as_json: Json = False,
) -> None:
    """Check this machine before it serves: disks, memory, processor, clocks, limits, files.

    Each look has a verdict, a reason and a remedy. Exit status 1 where one fails. Nothing is changed.
    Reads of packs are timed, which takes a moment for each.
    """
    found = list(_machine(threads))
    needed = _needed(budget, memory, max(len(paths or ()), 1))
    found += [
        *service_needs.memory(needed),
        service_needs.open_files(max_connections),
        service_needs.port(host, port),
        service_needs.keys(keys),
        service_needs.certificate(tls_certificate, tls_key),
    ]
    try:
        device = open_named(context, device_name, threads)
        found += _gpu(device, paths or [])
        for path in paths or ():
            found += packs.findings(path, device)
        base = process_bytes(max(len(paths or ()), 1))
        found += packs.fitting(paths or (), None if needed is None else needed - base, device)
    except DeviceError as exc:
        found.append(Finding("device", "fail", str(exc), "layerstream device cuda says more"))
    verdict = worst(found)
    if as_json:
        findings = [asdict(each) for each in found]
        print_json({"version": versions(), "verdict": verdict, "findings": findings})
    else:
        _print(found)
    if verdict == "fail":
        raise typer.Exit(_FAILED)


def _machine(threads: int | None) -> Iterator[Finding]:
    yield from machine.processor(ROOT)
    yield machine.cores_online(ROOT)
    yield machine.threads(ROOT, threads)
    yield machine.other_work()
    yield from machine.clocks(ROOT)
    yield from machine.pages(ROOT)
    yield machine.heat(ROOT)
    yield from machine.power(ROOT)


def _needed(budget: str | None, memory: str | None, models: int) -> int | None:
    """Return what a service would take in all; None: it is not said."""
    if budget is not None and memory is not None:
        raise typer.BadParameter("give --budget or --memory")
    within = size(budget, "--budget")
    return size(memory, "--memory") if within is None else within + process_bytes(models)


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


def _print(found: list[Finding]) -> None:
    print_table(
        versions(),
        ("verdict", "check", "what was found"),
        ((each.verdict, each.check, each.reason) for each in found),
    )
    for each in found:
        if each.remedy:
            say(f"{each.check}: {each.remedy}")
