"""Random networks that run on rows, as programs: no weights, no kernels, but every operand.

They have what compiled ones have: strides, dilations, asymmetric padding, windows beyond the last row,
residual sums that write over what they add, joins in place and copied, splits, chains in one piece, views,
layers in chunks, and pieces that need whole tensors.
"""

from random import Random

from models.network.windows import Window
from models.packs.records.row_parts import Outside, RowInput, RowPart
from pipeline.program.program import Program
from tests.pipeline.program.records import Records, Tensor

_MOST_HEIGHT = 23
_MOST_PLANES = 12


def random_network(random: Random, steps: int) -> Program:
    """Return a network of about ``steps`` operators."""
    return _Builder(random).built(steps)


class _Builder:
    def __init__(self, random: Random) -> None:
        self._random = random
        self._records = Records(random)

    def built(self, steps: int) -> Program:
        chosen = self._random
        size = chosen.choice([1, 2, 3, 5, 8, 13, _MOST_HEIGHT])
        source = self._records.tensor(chosen.randint(1, 4), size, chosen.randint(1, 3))
        source.free = False
        inputs = [source]
        if chosen.random() < 0.2:
            inputs.append(self._records.tensor(chosen.randint(1, 3), size, source.width))
            inputs[-1].free = False
        for _ in range(steps):
            self._add()
        unread = [tensor for tensor in self._records.pool if not self._records.is_read(tensor)]
        outputs = [tensor for tensor in unread or self._records.pool[-1:] if tensor not in inputs]
        others = [tensor for tensor in self._records.pool if tensor not in (*inputs, *outputs)]
        if others and chosen.random() < 0.2:
            outputs.append(chosen.choice(others))
        return self._records.program(inputs, outputs)

    # Nodes

    def _add(self) -> None:
        kinds = [
            *(self._window, self._window, self._window, self._sum, self._sum, self._chain),
            *(self._upsample, self._join, self._join, self._split, self._whole, self._binary),
            *(self._choose, self._crop),
        ]
        self._random.choice(kinds)()

    def _pick(self) -> Tensor:
        """Return what a node reads: often what was made last."""
        recent = self._records.pool[-3:] if self._random.random() < 0.7 else self._records.pool
        return self._random.choice(recent)

    def _window(self) -> None:
        source = self._pick()
        window, height = self._slid(source.height)
        taken = RowInput(row_value=source.row_value, window=window, fill=self._outside())
        self._records.operator(source, [taken], height)

    def _crop(self) -> None:
        """Some of the rows, those before and behind them are never read."""
        source = self._pick()
        top = self._random.randint(0, source.height - 1)
        height = self._random.randint(1, source.height - top)
        window = Window(before=-top).fitted(source.height, height)
        self._records.operator(
            source, [RowInput(row_value=source.row_value, window=window)], height
        )

    def _slid(self, height: int) -> tuple[Window, int]:
        """Return a window on so many rows, and how many it makes; the last may reach beyond the end."""
        chosen = self._random
        size, dilation = chosen.choice([1, 1, 2, 3, 3, 5, 7]), chosen.choice([1, 1, 1, 2])
        reach, stride = (size - 1) * dilation + 1, chosen.choice([1, 1, 2, 3])
        above, below = chosen.randint(0, reach - 1), chosen.randint(0, reach - 1)
        room = height + above + below - reach
        if room < 0:
            return Window(), height
        rows = room // stride + 1
        if chosen.random() < 0.2 and room % stride and rows * stride < height + above:
            rows += 1  # ceil_mode
        return Window(size, stride, dilation, above).fitted(height, rows), rows

    def _outside(self) -> Outside:
        fills: list[Outside] = ["zero", "zero", "lowest", "edge"]
        return self._random.choice(fills)

    def _sum(self) -> None:
        """A convolution that adds a tensor of the shape of its output, often over that tensor."""
        addend = self._pick()
        sources = [
            (tensor, window)
            for tensor in self._records.pool
            if tensor is not addend
            for window, height in [self._slid(tensor.height)]
            if height == addend.height
        ]
        if not sources:
            return self._window()
        source, window = self._random.choice(sources)
        inputs = [
            RowInput(row_value=source.row_value, window=window, fill=self._outside()),
            RowInput(row_value=addend.row_value),
        ]
        dead = not addend.storage & source.storage and self._random.random() < 0.7
        over = addend if dead else None
        self._records.operator(
            addend, inputs, addend.height, in_place=1, sources=[source, addend], over=over
        )
        return None

    def _chain(self) -> None:
        """Operators on elements, one or several in a piece: values between them have no memory."""
        source = self._pick()
        current, first = source, self._records.n_pieces
        count = self._random.randint(1, 3)
        for number in range(count):
            inner = number < count - 1
            made = self._records.tensor(
                source.planes,
                source.height,
                source.width,
                seen=not inner,
                rows=1 if inner else None,
            )
            inputs = [RowInput(row_value=current.row_value)]
            if current is not source and self._random.random() < 0.3:
                inputs.append(RowInput(row_value=source.row_value))
            self._records.record(inputs, made, first, first + 1, self._random.choice([0, 0, None]))
            current = made
        self._records.piece([source], [current])

    def _binary(self) -> None:
        one = self._pick()
        others = [
            item for item in self._records.pool if item.shape == one.shape and item is not one
        ]
        if not others:
            return self._chain()
        other = self._random.choice(others)
        inputs = [RowInput(row_value=item.row_value) for item in (one, other)]
        self._records.operator(
            one, inputs, one.height, in_place=0, sources=[one, other], planes=one.planes
        )
        return None

    def _upsample(self) -> None:
        source = self._pick()
        factor = self._random.choice([2, 2, 3])
        if source.height * factor > _MOST_HEIGHT:
            return self._window()
        window = Window(factor=factor)
        inputs = [RowInput(row_value=source.row_value, window=window)]
        self._records.operator(source, inputs, source.height * factor, planes=source.planes)
        return None

    def _join(self) -> None:
        one = self._pick()
        alike = [
            item
            for item in self._records.pool
            if (item.height, item.width) == (one.height, one.width)
        ]
        parts = self._random.sample(alike, min(len(alike), self._random.randint(2, 3)))
        if len(parts) < 2 or sum(item.planes for item in parts) > _MOST_PLANES:
            return self._window()
        in_place = all(item.free for item in parts) and self._random.random() < 0.7
        if not in_place and self._random.random() < 0.2:
            parts.append(parts[0])
        first = self._records.n_pieces
        joined = self._records.tensor(
            sum(item.planes for item in parts),
            one.height,
            one.width,
            parts=[RowPart(row_value=item.row_value, planes=item.planes) for item in parts],
            copied=None if in_place else first,
        )
        if not in_place:
            self._records.piece(list(dict.fromkeys(parts)), [joined])
            return None
        self._records.join(parts, joined)
        return None

    def _split(self) -> None:
        source = self._pick()
        if source.planes < 2:
            return self._window()
        cut = self._random.randint(1, source.planes - 1)
        first = self._records.n_pieces
        made = [
            self._records.tensor(
                planes,
                source.height,
                source.width,
                parts=[RowPart(row_value=source.row_value, first_plane=start, planes=planes)],
                copied=first,
            )
            for start, planes in ((0, cut), (cut, source.planes - cut))
        ]
        self._records.piece([source], made)
        return None

    def _choose(self) -> None:
        """Add planes of a value in any order: a slice, or a shuffle, which is written in another shape."""
        source = self._pick()
        chosen = self._random
        planes = chosen.sample(range(source.planes), chosen.randint(1, source.planes))
        first = self._records.n_pieces
        made = self._records.tensor(
            len(planes),
            source.height,
            source.width,
            parts=[
                RowPart(row_value=source.row_value, first_plane=plane, planes=1) for plane in planes
            ],
            copied=first,
        )
        self._records.piece([source], [made])
        if chosen.random() < 0.5:
            self._records.write_apart(made)

    def _whole(self) -> None:
        """A piece that needs all of a tensor, perhaps as another view of it."""
        source = self._pick()
        made = self._records.tensor(
            self._random.randint(1, 3), self._random.choice([1, 4, 9]), source.width
        )
        self._records.whole_piece(source, made, self._random.random() < 0.5)
