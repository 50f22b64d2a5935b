"""Which convolutions are the three parts of an inverted bottleneck."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise

from pipeline.export_c.lowering.steps import Pointer, Program, Step
from pipeline.export_c.regions.windows import window_of

#: What a convolution of one pixel has.
_PIXEL = {
    **dict.fromkeys(("kernel_y", "kernel_x", "stride_y", "stride_x", "groups"), 1),
    **dict.fromkeys(("pad_y", "pad_x"), 0),
}
_Window = Mapping[str, int]


@dataclass(frozen=True)
class Parts:
    """The convolutions: one makes many channels, one convolves each by itself, one adds them up."""

    wide: Step
    thin: Step
    narrow: Step

    @property
    def floats(self) -> bool:
        """Whether they are of floats; else of bytes."""
        return self.narrow.kernel == "convolve"

    def pay(self, program: Program) -> bool:
        """Return whether they need less memory as one step: two tensors at once are less."""
        read = self.wide.arguments[0]
        names = [read.name] if isinstance(read, Pointer) else []
        names += [step.output for step in (self.wide, self.thin, self.narrow)]
        sizes = [program.values[name].n_bytes for name in names]
        ends = sizes[-1] + (sizes[0] if len(sizes) > 3 else 0)
        return ends < max(map(sum, pairwise(sizes)))


def parts_of(
    narrow: Step, makers: Mapping[str, Step], readers: Counter[str], outputs: frozenset[str]
) -> Parts | None:
    """Return the convolutions of which ``narrow`` is the last, if they are a bottleneck.

    ``readers``: how many steps read each value; ``outputs``: values that the caller reads.
    """
    found = [narrow]
    for _ in range(2):
        read = found[0].arguments[0] if found[0].arguments else None
        maker = makers.get(read.name) if isinstance(read, Pointer) else None
        if maker is None or maker.kernel != narrow.kernel or maker.output in outputs:
            return None
        if readers[maker.output] != 1:
            return None
        found.insert(0, maker)
    windows = [window for window in map(window_of, found) if window is not None]
    if len(windows) < len(found) or any(window["batch"] != 1 for window in windows):
        return None
    added = any(step.after is not None and step.after.addend is not None for step in found[:2])
    return None if added or not _fit(*windows) else Parts(*found)


def _fit(wide: _Window, thin: _Window, narrow: _Window) -> bool:
    """Return whether channels inside are made for themselves, and lie as the kernels take them."""
    inner = wide["filters"]
    for_itself = {thin[name] for name in ("channels", "filters", "groups")} == {inner}
    adds_up = narrow["channels"] == inner and _is_of_pixels(narrow)
    in_rows = (wide["result_y"], wide["result_x"]) == (thin["size_y"], thin["size_x"])
    beside = {window.get("y_channel", 1) for window in (wide, thin, narrow)} == {1}
    return all((wide["groups"] == 1, for_itself, adds_up, in_rows, beside))


def _is_of_pixels(window: _Window) -> bool:
    """Return whether each pixel of the result is made of the one at its place; pads behind make more."""
    sizes = [window[f"{what}_y"] * window[f"{what}_x"] for what in ("size", "result")]
    return _PIXEL.items() <= window.items() and sizes[0] == sizes[1]
