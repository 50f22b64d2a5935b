"""What files of applications hold: models, layers, windows, partitions (docs/research/applications.md)."""

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

from models.network.windows import Window

_MOST_LAYERS = 100_000
_MOST_WORKERS = 64
_MOST_SECONDS = 1e6
_MOST_PARAMETERS = 1 << 48
_Elements = Annotated[int, Field(ge=1, le=1 << 32)]
_Padding = Annotated[int, Field(ge=-(1 << 32), le=1 << 32)]


class _Record(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class WindowRecord(_Record):
    """A window in rows (models/network/windows.py): ``above`` is before them, ``below`` behind."""

    kernel: _Elements = 1
    stride: _Elements = 1
    above: _Padding = 0
    below: _Padding = 0
    dilation: _Elements = 1
    factor: _Elements = 1

    @property
    def as_window(self) -> Window:
        return Window(self.kernel, self.stride, self.dilation, self.above, self.below, self.factor)


class ReadRecord(_Record):
    """An input that is read otherwise: through a window of its own, or only so many channels of it."""

    layer: str
    window: WindowRecord | None = None
    channels: _Elements | None = None


class LayerRecord(WindowRecord):
    """A layer: its output as [channels, height, width], its window, and whose outputs it reads.

    ``reads``: None: the layer before it.
    """

    name: str = Field(min_length=1)
    operator: str = "layer"
    output: tuple[_Elements, _Elements, _Elements]
    reads: tuple[str | ReadRecord, ...] | None = None
    seconds: float = Field(0.0, ge=0, le=_MOST_SECONDS)
    parameters: int = Field(0, ge=0, le=_MOST_PARAMETERS)


class ModelRecord(_Record):
    """A model: a ``pack``, relative to the file, or ``layers``.

    ``partitions``: layers by name, ``a..b`` for those from one to another, lists for steps of several.
    ``workers``: of a pack so many partitions that run at once, cut where our planner would.
    """

    name: str = Field(min_length=1)
    pack: str | None = None
    layers: tuple[LayerRecord, ...] = Field((), max_length=_MOST_LAYERS)
    workers: int = Field(1, ge=1, le=_MOST_WORKERS)
    partitions: tuple[tuple[str | tuple[str, ...], ...], ...] = ()


class ApplicationRecord(_Record):
    """The file. ``together``: models, or partitions as ``MODEL/2``, that run at once."""

    name: str = "application"
    element_bytes: _Elements = 4
    parameter_bytes: _Elements = 4
    together: tuple[tuple[str, ...], ...] = ()
    model: tuple[ModelRecord, ...] = ()
