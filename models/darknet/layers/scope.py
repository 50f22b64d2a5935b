"""A section while it becomes a layer: its options and the layers before it."""

from collections.abc import Sequence
from dataclasses import dataclass

from models.darknet.cfg.options import SectionOptions
from models.darknet.layers.layer import IMAGE, DarknetLayer, Shape, WeightArray
from models.darknet.layers.parameters import Parameters


@dataclass(frozen=True)
class SectionScope:
    """A section and what comes before it: all that a layer is built from."""

    options: SectionOptions
    image: Shape
    before: Sequence[DarknetLayer]

    @property
    def index(self) -> int:
        return len(self.before)

    @property
    def input(self) -> Shape:
        """Shape of the previous layer's output."""
        return self.shape(self.index - 1)

    def shape(self, index: int) -> Shape:
        return self.image if index == IMAGE else self.before[index].shape

    def source(self, option: str, number: int) -> int:
        """Return the layer that ``number`` means: counted from here if negative.

        Raises:
            DarknetError: it is not a layer before this one.
        """
        index = number if number >= 0 else self.index + number
        if not 0 <= index < self.index:
            self.options.fail(f"{option}: {number} is no layer before this one", option)
        return index

    def layer(
        self,
        shape: Shape,
        parameters: Parameters,
        arrays: dict[str, tuple[int, ...]] | None = None,
        inputs: tuple[int, ...] | None = None,
    ) -> DarknetLayer:
        """Return the layer of this section; it reads the previous one unless ``inputs`` are given."""
        return DarknetLayer(
            self.index,
            self.options.section,
            self.options.kind,
            (self.index - 1,) if inputs is None else inputs,
            shape,
            parameters,
            tuple(
                WeightArray(f"layer{self.index}.{role}", dims)
                for role, dims in (arrays or {}).items()
            ),
        )
