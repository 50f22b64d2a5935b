"""The driver under test: the fake one with kernels on the host; with LAYERSTREAM_KERNELS=gpu a GPU's."""

import os

from pipeline.devices.cuda.driver import Driver, Properties
from pipeline.devices.cuda.fake import XAVIER, FakeDriver
from tests.pipeline.cuda.computing import compute
from tests.pipeline.cuda.host.build import HostKernels

ON_GPU = os.environ.get("LAYERSTREAM_KERNELS") == "gpu"


def driver_of(kernels: HostKernels, seed: int = 0, known: Properties = XAVIER) -> Driver:
    """Return a driver; ``seed`` and ``known`` are the fake one's."""
    if not ON_GPU:
        return FakeDriver(seed, known=known, compute=compute(kernels))
    from pipeline.devices.cuda.cupy_driver import CupyDriver

    return CupyDriver()
