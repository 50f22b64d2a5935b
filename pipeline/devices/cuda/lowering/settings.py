"""What lowering is told about the device."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from pipeline.devices.cuda.choices import Precision


@dataclass(frozen=True)
class Settings:
    """``algorithms``: by ``geometry_key`` of a convolution, the algorithm that was fastest for it.

    ``libraries``: whether cuBLAS may be measured, too; its bits may depend on the number of filters.
    """

    multiprocessors: int = 8
    precision: Precision = "fp32"
    algorithms: Mapping[str, str] = field(default_factory=dict)
    libraries: bool = False
