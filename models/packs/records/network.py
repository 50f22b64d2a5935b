"""What nodes of model.onnx are that the compiler wrote otherwise, by the names of values."""

from dataclasses import dataclass

from models.network.fields import Count, Name, Record
from models.network.windows import Window


@dataclass(frozen=True, slots=True, kw_only=True)
class WindowProduct(Record):
    """A convolution of bytes on channels-last tensors: a matrix times the windows of its input.

    ``source`` and ``output`` are [images, rows, columns, channels], ``windows`` those of rows and columns.
    """

    source: Name
    output: Name
    windows: tuple[Window, Window]


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnedSoftmax(Record):
    """A softmax of ``source`` along ``axis`` that runs along rows: one node turns them there, one back."""

    source: Name
    output: Name
    axis: Count
