"""Commands are tried on the packs and with the cares of the service's tests."""

from tests.server.conftest import (
    arrivals,
    cli,
    faults,
    kept_logging,
    no_outside_settings,
    no_threads_left,
    packs,
    service,
    settings,
    shared,
)

__all__ = [
    "arrivals",
    "cli",
    "faults",
    "kept_logging",
    "no_outside_settings",
    "no_threads_left",
    "packs",
    "service",
    "settings",
    "shared",
]
