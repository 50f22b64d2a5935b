"""The fake driver's kernels: those of the device, on the host."""

from pipeline.devices.cuda.call import Arguments, DevicePointer, KernelLaunch
from tests.pipeline.devices.cuda.fake_driver import Compute
from tests.pipeline.devices.cuda.host.build import HostKernels


def compute(kernels: HostKernels) -> Compute:
    """Return what runs a launch on the addresses that its arguments have."""

    def run(call: KernelLaunch, arguments: Arguments) -> None:
        pairs = zip(call.arguments, arguments.values, strict=True)
        addresses = iter(
            [value for argument, value in pairs if isinstance(argument, DevicePointer)]
        )
        kernels.launch(call, lambda pointer: next(addresses))

    return run
