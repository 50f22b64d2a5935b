"""The driver under test: the fake one with kernels on the host; with LAYERSTREAM_KERNELS=gpu a GPU's."""

from pipeline.devices.cuda.driver import Driver, Properties
from tests.pipeline.devices.cuda.computing import compute
from tests.pipeline.devices.cuda.fake_driver import XAVIER, FakeDriver
from tests.pipeline.devices.cuda.host.build import HostKernels
from tests.pipeline.devices.cuda.space import ON_GPU, Kernels, gpu

__all__ = ["ON_GPU", "driver_of"]


def driver_of(
    kernels: Kernels, seed: int = 0, known: Properties = XAVIER, eager: float = 0.3
) -> Driver:
    """Return a driver; all but ``kernels`` is the fake one's."""
    if isinstance(kernels, HostKernels):
        return FakeDriver(seed, eager, known=known, compute=compute(kernels))
    return gpu()
