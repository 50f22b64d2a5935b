"""What users choose of the CUDA device. Which kernel computes an operator: operators/__init__.py."""

from typing import Literal

#: How streamed weights reach the kernels of ``auto``. Pipelines of three stages copy whatever the kind is,
#: other ones of two stages are mapped where it is ``copied``.
Kind = Literal["copied", "mapped", "managed"]
#: What convolutions multiply: float32, or float16 on tensor cores with float32 sums. Memory holds float32.
Precision = Literal["fp32", "fp16"]
