"""Random networks that run on rows, as manifests: no weights, no kernels, but every operand.

They have what compiled ones have: strides, dilations, asymmetric padding, windows beyond the last row,
residual sums that write over what they add, joins in place and copied, splits, chains in one piece, views,
layers in chunks, and pieces that need whole tensors.
"""

from dataclasses import dataclass, field, replace
from random import Random
from typing import Any, Literal

from models.packs.manifest import (
    Manifest,
    Operand,
    Piece,
    Port,
    RowInput,
    RowOperator,
    RowPart,
    RowValue,
    Value,
    Window,
)
from tests.pipeline.synthetic import manifest

_ELEMENT = 4
_MOST_HEIGHT = 23
_MOST_PLANES = 12


@dataclass(eq=False)
class _Tensor:
    """A value with rows; ``storage``: all that lie in the same memory, itself included."""

    row_value: int
    value: int
    planes: int
    height: int
    width: int
    storage: set[int] = field(default_factory=set)
    free: bool = True  # may be put into a joined value: has no parent, and is no input

    @property
    def shape(self) -> tuple[int, ...]:
        return (1, self.planes, self.height, self.width)

    @property
    def plane_bytes(self) -> int:
        return self.height * self.width * _ELEMENT


def random_network(random: Random, steps: int) -> Manifest:
    """Return a network of about ``steps`` operators."""
    return _Builder(random).built(steps)


class _Builder:
    def __init__(self, random: Random) -> None:
        self._random = random
        self._values: list[dict[str, Any]] = []
        self._row_values: list[RowValue] = []
        self._operators: list[RowOperator] = []
        self._pieces: list[dict[str, Any]] = []
        self._pool: list[_Tensor] = []  # what later nodes may read
        self._used: set[int] = set()

    def built(self, steps: int) -> Manifest:
        chosen = self._random
        size = chosen.choice([1, 2, 3, 5, 8, 13, _MOST_HEIGHT])
        source = self._tensor(chosen.randint(1, 4), size, chosen.randint(1, 3))
        source.free = False
        inputs = [source]
        if chosen.random() < 0.2:
            inputs.append(self._tensor(chosen.randint(1, 3), size, source.width))
            inputs[-1].free = False
        for _ in range(steps):
            self._add()
        unread = [tensor for tensor in self._pool if tensor.value not in self._used]
        outputs = [tensor for tensor in unread or self._pool[-1:] if tensor not in inputs]
        others = [tensor for tensor in self._pool if tensor not in (*inputs, *outputs)]
        if others and chosen.random() < 0.2:
            outputs.append(chosen.choice(others))
        return self._manifest(inputs, outputs)

    def _manifest(self, inputs: list[_Tensor], outputs: list[_Tensor]) -> Manifest:
        streams = [piece["weights"] for piece in self._pieces]
        made = manifest([self._random.randint(1, 3) for used in streams if used], streams)
        spans = iter(range(len(made.spans)))
        return made.model_copy(
            update={
                "values": tuple(Value(**fields) for fields in self._values),
                "row_values": tuple(self._row_values),
                "row_operators": tuple(self._operators),
                "pieces": tuple(
                    Piece(
                        graph=0,
                        span=next(spans) if piece["weights"] else None,
                        inputs=piece["inputs"],
                        outputs=piece["outputs"],
                    )
                    for piece in self._pieces
                ),
                "inputs": tuple(self._port(tensor) for tensor in inputs),
                "outputs": tuple(self._port(tensor) for tensor in outputs),
            }
        )

    def _port(self, tensor: _Tensor) -> Port:
        name = self._values[tensor.value]["name"]
        return Port(name=name, dtype="float32", shape=tensor.shape, value=tensor.value)

    # Nodes

    def _add(self) -> None:
        kinds = [
            *(self._window, self._window, self._window, self._sum, self._sum, self._chain),
            *(self._upsample, self._join, self._join, self._split, self._whole, self._binary),
            self._choose,
        ]
        self._random.choice(kinds)()

    def _pick(self) -> _Tensor:
        """Return what a node reads: often what was made last."""
        recent = self._pool[-3:] if self._random.random() < 0.7 else self._pool
        return self._random.choice(recent)

    def _window(self) -> None:
        source = self._pick()
        window, height = self._slid(source.height)
        self._operator(source, [RowInput(row_value=source.row_value, window=window)], height)

    def _slid(self, height: int) -> tuple[Window, int]:
        """Return a window on so many rows, and how many it makes; the last may reach beyond the end."""
        chosen = self._random
        size, dilation = chosen.choice([1, 1, 2, 3, 3, 5, 7]), chosen.choice([1, 1, 1, 2])
        kernel, stride = (size - 1) * dilation + 1, chosen.choice([1, 1, 2, 3])
        above, below = chosen.randint(0, kernel - 1), chosen.randint(0, kernel - 1)
        room = height + above + below - kernel
        if room < 0:
            return Window(), height
        rows = room // stride + 1
        if chosen.random() < 0.2 and room % stride and rows * stride < height + above:
            rows += 1  # ceil_mode
        fill: Literal["zero", "lowest"] = chosen.choice(["zero", "zero", "lowest"])
        return Window(kernel=kernel, stride=stride, above=above, fill=fill), rows

    def _sum(self) -> None:
        """A convolution that adds a tensor of the shape of its output, often over that tensor."""
        addend = self._pick()
        sources = [
            (tensor, window)
            for tensor in self._pool
            if tensor is not addend
            for window, height in [self._slid(tensor.height)]
            if height == addend.height
        ]
        if not sources:
            return self._window()
        source, window = self._random.choice(sources)
        inputs = [
            RowInput(row_value=source.row_value, window=window),
            RowInput(row_value=addend.row_value),
        ]
        dead = not addend.storage & source.storage and self._random.random() < 0.7
        over = addend if dead else None
        self._operator(
            addend, inputs, addend.height, in_place=1, sources=[source, addend], over=over
        )
        return None

    def _chain(self) -> None:
        """Operators on elements, one or several in a piece: values between them have no memory."""
        source = self._pick()
        current, first = source, len(self._pieces)
        count = self._random.randint(1, 3)
        for number in range(count):
            inner = number < count - 1
            made = self._tensor(
                source.planes,
                source.height,
                source.width,
                seen=not inner,
                rows=1 if inner else None,
            )
            inputs = [RowInput(row_value=current.row_value)]
            if current is not source and self._random.random() < 0.3:
                inputs.append(RowInput(row_value=source.row_value))
            self._record(inputs, made, first, first + 1, self._random.choice([0, 0, None]))
            current = made
        self._piece([source], [current])

    def _binary(self) -> None:
        one = self._pick()
        others = [item for item in self._pool if item.shape == one.shape and item is not one]
        if not others:
            return self._chain()
        other = self._random.choice(others)
        inputs = [RowInput(row_value=item.row_value) for item in (one, other)]
        self._operator(one, inputs, one.height, in_place=0, sources=[one, other], planes=one.planes)
        return None

    def _upsample(self) -> None:
        source = self._pick()
        factor = self._random.choice([2, 2, 3])
        if source.height * factor > _MOST_HEIGHT:
            return self._window()
        window = Window(factor=factor)
        inputs = [RowInput(row_value=source.row_value, window=window)]
        self._operator(source, inputs, source.height * factor, planes=source.planes)
        return None

    def _join(self) -> None:
        one = self._pick()
        alike = [
            item for item in self._pool if (item.height, item.width) == (one.height, one.width)
        ]
        parts = self._random.sample(alike, min(len(alike), self._random.randint(2, 3)))
        if len(parts) < 2 or sum(item.planes for item in parts) > _MOST_PLANES:
            return self._window()
        in_place = all(item.free for item in parts) and self._random.random() < 0.7
        if not in_place and self._random.random() < 0.2:
            parts.append(parts[0])
        first = len(self._pieces)
        joined = self._tensor(
            sum(item.planes for item in parts),
            one.height,
            one.width,
            parts=[RowPart(row_value=item.row_value, planes=item.planes) for item in parts],
            copied=None if in_place else first,
        )
        if not in_place:
            self._piece(list(dict.fromkeys(parts)), [joined])
            return None
        offset = 0
        for item in parts:
            self._lie_in(item, joined, offset)
            offset += item.planes * item.plane_bytes
        self._used.update(item.value for item in parts)
        return None

    def _split(self) -> None:
        source = self._pick()
        if source.planes < 2:
            return self._window()
        cut = self._random.randint(1, source.planes - 1)
        first = len(self._pieces)
        made = [
            self._tensor(
                planes,
                source.height,
                source.width,
                parts=[RowPart(row_value=source.row_value, first_plane=start, planes=planes)],
                copied=first,
            )
            for start, planes in ((0, cut), (cut, source.planes - cut))
        ]
        self._piece([source], made)
        return None

    def _choose(self) -> None:
        """Add planes of a value in any order: a slice, or a shuffle, which is written in another shape."""
        source = self._pick()
        chosen = self._random
        planes = chosen.sample(range(source.planes), chosen.randint(1, source.planes))
        first = len(self._pieces)
        made = self._tensor(
            len(planes),
            source.height,
            source.width,
            parts=[
                RowPart(row_value=source.row_value, first_plane=plane, planes=1) for plane in planes
            ],
            copied=first,
        )
        self._piece([source], [made])
        if chosen.random() < 0.5:
            self._values.append({**self._values[made.value], "name": f"apart{len(self._values)}"})
            self._values[made.value] |= {"parent": len(self._values) - 1, "offset": 0}
            made.free = False
            written = replace(self._operand(made), index=len(self._values) - 1)
            self._pieces[-1]["outputs"] = (written,)

    def _whole(self) -> None:
        """A piece that needs all of a tensor, perhaps as another view of it."""
        source = self._pick()
        made = self._tensor(
            self._random.randint(1, 3), self._random.choice([1, 4, 9]), source.width
        )
        operand = self._operand(source)
        if self._random.random() < 0.5:
            self._values.append(
                {
                    **self._values[source.value],
                    "name": f"view{len(self._values)}",
                    "parent": source.value,
                    "offset": 0,
                }
            )
            operand = replace(operand, index=len(self._values) - 1)
        self._used.add(source.value)
        self._pieces.append(
            {"inputs": (operand,), "outputs": (self._operand(made),), "weights": True}
        )

    # Records

    def _operator(
        self,
        source: _Tensor,
        inputs: list[RowInput],
        height: int,
        *,
        in_place: int | None = None,
        sources: list[_Tensor] | None = None,
        over: _Tensor | None = None,
        planes: int | None = None,
    ) -> None:
        """Add an operator in one piece, or in chunks of its planes."""
        chosen = self._random
        if in_place == 1:
            planes = source.planes
        made = self._tensor(planes or chosen.randint(1, 4), height, source.width)
        if over is not None:
            self._write_over(made, over)
        first = len(self._pieces)
        cut = chosen.randint(0, made.planes - 1) if over is None else 0
        for start, end in ((0, cut), (cut, made.planes)):
            if start < end:
                self._piece(sources or [source], [made], range(start, end), chosen.random() < 0.8)
        self._record(inputs, made, first, len(self._pieces), in_place)

    def _record(
        self, inputs: list[RowInput], made: _Tensor, first: int, end: int, in_place: int | None
    ) -> None:
        self._operators.append(
            RowOperator(
                graph=0,
                first_piece=first,
                end_piece=end,
                inputs=tuple(inputs),
                weights=(),
                output=made.row_value,
                in_place=in_place,
            )
        )

    def _tensor(
        self,
        planes: int,
        height: int,
        width: int,
        *,
        parts: list[RowPart] | None = None,
        copied: int | None = None,
        seen: bool = True,
        rows: int | None = None,
    ) -> _Tensor:
        value, row_value = len(self._values), len(self._row_values)
        made = _Tensor(row_value, value, planes, height, width, {value})
        shape = (1, planes, rows or height, width)
        self._values.append({"name": f"v{value}", "dtype": "float32", "shape": shape})
        self._row_values.append(
            RowValue(
                name=f"v{value}",
                dtype="float32",
                shape=made.shape,
                value=value,
                planes=planes,
                parts=tuple(parts or ()),
                first_piece=copied or 0,
                end_piece=0 if copied is None else copied + 1,
            )
        )
        if seen:
            self._pool.append(made)
        return made

    def _piece(
        self,
        sources: list[_Tensor],
        made: list[_Tensor],
        planes: range | None = None,
        weights: bool = False,
    ) -> None:
        self._used.update(item.value for item in sources)
        self._pieces.append(
            {
                "inputs": tuple(self._operand(item) for item in sources),
                "outputs": tuple(self._operand(item, planes) for item in made),
                "weights": weights,
            }
        )

    def _operand(self, tensor: _Tensor, planes: range | None = None) -> Operand:
        own = planes or range(tensor.planes)
        return Operand(
            kind="value",
            index=tensor.value,
            offset=own.start * tensor.plane_bytes,
            dtype="float32",
            shape=(1, len(own), tensor.height, tensor.width),
        )

    def _lie_in(self, item: _Tensor, parent: _Tensor, offset: int) -> None:
        self._values[item.value] |= {"parent": parent.value, "offset": offset}
        item.free = False
        storage = item.storage | parent.storage
        for tensor in self._pool:
            if tensor.value in storage:
                tensor.storage = storage

    def _write_over(self, made: _Tensor, addend: _Tensor) -> None:
        """Let ``made`` lie over ``addend``; nothing else in that memory is read any more."""
        self._values[made.value] |= {"parent": addend.value, "offset": 0}
        made.free = False
        dead = set(addend.storage)
        self._pool = [item for item in self._pool if item is made or item.value not in dead]
        made.storage |= dead
