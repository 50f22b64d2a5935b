"""The kernels under test: built for the host once for a session, skipped (or failed) without g++."""

import os

import pytest

from tests.pipeline.devices.cuda.host.build import HostKernels, compiler_missing
from tests.pipeline.devices.cuda.space import ON_GPU, Kernels, some_kernels


def missing(what: str) -> None:
    """Skip without a tool, unless LAYERSTREAM_REQUIRE_TOOLS=1: then fail."""
    report = pytest.fail if os.environ.get("LAYERSTREAM_REQUIRE_TOOLS") == "1" else pytest.skip
    report(f"{what} is not installed")


@pytest.fixture(scope="session")
def kernels() -> Kernels:
    """All kernels of pipeline/devices/cuda/kernels, on the host or, if asked for, on a GPU."""
    if not ON_GPU and compiler_missing():
        missing("g++")
    return some_kernels()


@pytest.fixture(scope="session")
def host_kernels() -> HostKernels:
    """The same on the host, for the fake driver."""
    if compiler_missing():
        missing("g++")
    return HostKernels()
