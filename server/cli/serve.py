"""``layerstream serve``: the HTTP service."""

import os
from pathlib import Path
from typing import Annotated

import typer

from pipeline.architectures import ARCHITECTURES
from pipeline.devices.find import KINDS, PRECISIONS
from server.settings import load_settings


def serve(
    repository: Annotated[Path | None, typer.Option(help="Folder of packs.")] = None,
    budget: Annotated[
        str | None, typer.Option(help="Memory for all models together, e.g. 256MiB.")
    ] = None,
    host: Annotated[str | None, typer.Option(help="Address; default 127.0.0.1.")] = None,
    port: Annotated[int | None, typer.Option(help="Port; default 8080, 0: a free one.")] = None,
    allow_admin: Annotated[
        bool | None, typer.Option("--allow-admin", help="Load and unload for other machines, too.")
    ] = None,
    model: Annotated[
        list[str] | None, typer.Option(help="Serve only this one; repeatable.")
    ] = None,
    architecture: Annotated[
        str | None, typer.Option(help=f"{', '.join(ARCHITECTURES)} (default auto).")
    ] = None,
    device: Annotated[
        str | None, typer.Option(help="What computes: cpu (default), cuda, cuda:1, ...")
    ] = None,
    memory_kind: Annotated[
        str | None, typer.Option(help=f"CUDA: {', '.join(KINDS)} (default: as profiled).")
    ] = None,
    precision: Annotated[
        str | None, typer.Option(help=f"CUDA: {', '.join(PRECISIONS)} (default fp32).")
    ] = None,
    recompile: Annotated[
        bool | None, typer.Option("--recompile", help="Take packs for another CUDA capability.")
    ] = None,
    threads: Annotated[int | None, typer.Option(help="Compute threads.")] = None,
    verify: Annotated[
        str | None, typer.Option(help="Checksums: first sweep (default) or always.")
    ] = None,
    exit_on_error: Annotated[
        bool | None, typer.Option("--exit-on-error", help="End if one model cannot be served.")
    ] = None,
    queue_limit: Annotated[int | None, typer.Option(help="Requests that may wait.")] = None,
    request_timeout: Annotated[float | None, typer.Option(help="Seconds.")] = None,
    drain_timeout: Annotated[float | None, typer.Option(help="Seconds.")] = None,
    request_memory: Annotated[
        str | None, typer.Option(help="Of the budget, for requests in flight.")
    ] = None,
    max_body: Annotated[str | None, typer.Option(help="Largest request body.")] = None,
    max_connections: Annotated[int | None, typer.Option(help="Connections at a time.")] = None,
    max_connections_per_address: Annotated[
        int | None, typer.Option(help="Of one client (default half of all).")
    ] = None,
    header_timeout: Annotated[float | None, typer.Option(help="Seconds for a header.")] = None,
    idle_timeout: Annotated[
        float | None, typer.Option(help="Seconds between requests of a connection.")
    ] = None,
    stall_timeout: Annotated[
        float | None, typer.Option(help="Seconds without progress of a body or an answer.")
    ] = None,
    max_image_pixels: Annotated[int | None, typer.Option(help="Largest image.")] = None,
    access_log: Annotated[
        str | None, typer.Option(help="Requests with a line of their own: errors (default) or all.")
    ] = None,
    log_format: Annotated[str | None, typer.Option(help="json (default) or text.")] = None,
    config: Annotated[Path | None, typer.Option(help="TOML file with the same settings.")] = None,
) -> None:
    """Serve the packs of a repository over HTTP, inside one memory budget.

    Settings come from flags, then LAYERSTREAM_* variables, then --config, then defaults.
    """
    flags = {
        "repository": repository,
        "budget": budget,
        "host": host,
        "port": port,
        "allow_admin": allow_admin,
        "models": tuple(model) if model else None,
        "architecture": architecture,
        "device": device,
        "memory_kind": memory_kind,
        "precision": precision,
        "recompile": recompile,
        "threads": threads,
        "verify": verify,
        "exit_on_error": exit_on_error,
        "queue_limit": queue_limit,
        "request_timeout": request_timeout,
        "drain_timeout": drain_timeout,
        "request_memory": request_memory,
        "max_body": max_body,
        "max_connections": max_connections,
        "max_connections_per_address": max_connections_per_address,
        "header_timeout": header_timeout,
        "idle_timeout": idle_timeout,
        "stall_timeout": stall_timeout,
        "max_image_pixels": max_image_pixels,
        "access_log": access_log,
        "log_format": log_format,
    }
    settings = load_settings(flags, config)

    from server.cgroup import memory_limited
    from server.notify import Notifier

    # Libraries take a while, and memory.
    Notifier.from_environment(os.environ).status(f"starting{memory_limited()}")

    from server import logs
    from server.exposure import warn_of_exposure
    from server.serve import run

    logs.configure(settings.log_format)
    warn_of_exposure(settings)
    run(settings)
