"""What trying things out needs of the CUDA device: the device imports the trials, they know it by this."""

from typing import Protocol

from pipeline.devices.base import Done
from pipeline.devices.cuda.choices import Kind
from pipeline.devices.cuda.driver import Driver
from pipeline.devices.cuda.lowering import ConvolutionSettings
from pipeline.devices.memory import Memory, Use


class TrialDevice(Protocol):
    """A device whose memory kinds and algorithms are compared (device.py says what each member does)."""

    driver: Driver
    kernel_stream: int
    settings: ConvolutionSettings

    def allocate(self, use: Use, n_bytes: int, slots: int = 1) -> Memory: ...

    def shared(self, kind: Kind, n_bytes: int, slots: int = 1) -> Memory: ...

    def copy(self, source: memoryview, target: Memory, offset: int, done: Done) -> None: ...
