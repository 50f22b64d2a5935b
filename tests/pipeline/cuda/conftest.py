"""Kernels on the host: built once for a session, skipped (or failed) where g++ is missing."""

import os

import pytest

from tests.pipeline.cuda.host.build import HostKernels, compiler_missing


def missing(what: str) -> None:
    """Skip without a tool, unless LAYERSTREAM_REQUIRE_TOOLS=1: then fail."""
    report = pytest.fail if os.environ.get("LAYERSTREAM_REQUIRE_TOOLS") == "1" else pytest.skip
    report(f"{what} is not installed")


@pytest.fixture(scope="session")
def kernels() -> HostKernels:
    """All kernels of pipeline/devices/cuda/kernels, on the host."""
    if compiler_missing():
        missing("g++")
    return HostKernels()
