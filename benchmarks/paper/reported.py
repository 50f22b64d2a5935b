"""What seed 003 reports (Table I and II), to stand beside ours: Jetson AGX Xavier, 1000 runs each.

Percentages are against the paper's ``Pre``, whose memory is twice the sum of all layers (Eq. 2).
"""

from dataclasses import dataclass, replace


@dataclass(frozen=True)
class PaperNetwork:
    """One network of the paper. ``name``: in the zoo; sizes in MB (2**20 bytes), resolution in pixels.

    ``multiple``: what the resolution must be a multiple of. ``rows``: memory and delay in percent against
    Pre, by our names of the architectures.
    """

    name: str
    title: str
    resolution: int
    weights_mb: float
    largest_layer_mb: float
    rows: dict[str, tuple[float, float]]
    multiple: int = 32

    def at(self, resolution: int) -> "PaperNetwork":
        """Return the network at ``resolution`` or just above; the paper has no figures there."""
        sides = -(-resolution // self.multiple) * self.multiple
        return replace(self, resolution=sides, rows={})


_NAMES = ("seq", "sync", "async", "async-md", "2s", "2s-md")


def _rows(*pairs: tuple[float, float]) -> dict[str, tuple[float, float]]:
    return dict(zip(_NAMES, pairs, strict=True))


NETWORKS = (
    PaperNetwork(
        *("yolov3", "YOLOv3", 608, 236.5, 18.0),
        _rows(
            (-92.4, 44.9), (-84.8, 18.9), (-92.4, 18.1), (-83.1, 1.7), (-96.2, 21.8), (-84.8, 0.5)
        ),
    ),
    PaperNetwork(
        *("yolov4", "YOLOv4", 608, 245.8, 18.0),
        _rows(
            (-92.7, 52.1), (-85.4, 23.7), (-92.7, 12.7), (-83.1, 1.7), (-96.3, 21.5), (-89.3, 0.4)
        ),
    ),
    PaperNetwork(
        *("yolov4-p6", "YOLOv4-P6", 640, 487.2, 36.0),
        _rows(
            (-92.6, 70.2), (-85.2, 38.4), (-92.6, 8.7), (-84.2, 2.0), (-96.3, 16.7), (-85.7, 0.3)
        ),
        multiple=64,
    ),
    PaperNetwork(
        *("resnet152-darknet", "ResNet152", 608, 219.6, 9.0),
        _rows((-95.9, 45.8), (-91.8, 11.4), (-95.9, 2.7), (-92.0, 1.2), (-98.0, 5.1), (-93.9, 0.2)),
    ),
    PaperNetwork(
        *("densenet201-darknet", "DenseNet201", 608, 65.6, 5.9),
        _rows((-91.0, 65.4), (-82.0, 22.9), (-91.0, 2.0), (-86.9, 1.0), (-95.5, 8.9), (-88.2, 0.4)),
    ),
)
