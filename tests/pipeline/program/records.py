"""What random networks are written down in: values, pieces that read and write them, row operators."""

from dataclasses import dataclass, field, replace
from random import Random
from typing import Any

from models.packs.records.pieces import Operand, Piece, Value
from models.packs.records.ports import Port
from models.packs.records.row_parts import RowInput, RowOperator, RowPart, RowValue, UnrolledRows
from pipeline.program.program import Program
from tests.pipeline.synthetic import program_of, record

_ELEMENT = 4


@dataclass(eq=False)
class Tensor:
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


class Records:
    """A network as it grows. ``pool``: the tensors that later nodes may read."""

    def __init__(self, random: Random) -> None:
        self._random = random
        self._values: list[dict[str, Any]] = []
        self._row_values: list[RowValue] = []
        self._operators: list[RowOperator] = []
        self._pieces: list[dict[str, Any]] = []
        self._used: set[int] = set()
        self.pool: list[Tensor] = []

    @property
    def n_pieces(self) -> int:
        return len(self._pieces)

    def is_read(self, tensor: Tensor) -> bool:
        """Return whether a piece reads ``tensor``."""
        return tensor.value in self._used

    def program(self, inputs: list[Tensor], outputs: list[Tensor]) -> Program:
        streams = [piece["weights"] for piece in self._pieces]
        made = record([self._random.randint(1, 3) for used in streams if used], streams)
        spans = iter(range(len(made.spans)))
        changed = replace(
            made,
            values=tuple(Value(**fields) for fields in self._values),
            row_values=tuple(self._row_values),
            row_operators=tuple(self._operators),
            pieces=tuple(
                Piece(
                    graph=0,
                    span=next(spans) if piece["weights"] else None,
                    inputs=piece["inputs"],
                    outputs=piece["outputs"],
                )
                for piece in self._pieces
            ),
            inputs=tuple(self._port(tensor) for tensor in inputs),
            outputs=tuple(self._port(tensor) for tensor in outputs),
        )
        return program_of(changed)

    def _port(self, tensor: Tensor) -> Port:
        name = self._values[tensor.value]["name"]
        return Port(name=name, dtype="float32", shape=tensor.shape, value=tensor.value)

    def operator(
        self,
        source: Tensor,
        inputs: list[RowInput],
        height: int,
        *,
        in_place: int | None = None,
        sources: list[Tensor] | None = None,
        over: Tensor | None = None,
        planes: int | None = None,
    ) -> None:
        """Add an operator in one piece, or in chunks of its planes."""
        chosen = self._random
        if in_place == 1:
            planes = source.planes
        made = self.tensor(planes or chosen.randint(1, 4), height, source.width)
        if over is not None:
            self.write_over(made, over)
        first = len(self._pieces)
        cut = chosen.randint(0, made.planes - 1) if over is None else 0
        for start, end in ((0, cut), (cut, made.planes)):
            if start < end:
                self.piece(sources or [source], [made], range(start, end), chosen.random() < 0.8)
        self.record(inputs, made, first, len(self._pieces), in_place)

    def record(
        self, inputs: list[RowInput], made: Tensor, first: int, end: int, in_place: int | None
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
                unrolled=self._unrolled(made),
            )
        )

    def _unrolled(self, made: Tensor) -> UnrolledRows | None:
        """Every third operator is a plain convolution of more filters than a few rows have pixels."""
        if len(self._operators) % 3:
            return None
        return UnrolledRows(pixel_bytes=9 << 12, filters=5 * made.width // 2 + 1, segments=2)

    def tensor(
        self,
        planes: int,
        height: int,
        width: int,
        *,
        parts: list[RowPart] | None = None,
        copied: int | None = None,
        seen: bool = True,
        rows: int | None = None,
    ) -> Tensor:
        value, row_value = len(self._values), len(self._row_values)
        made = Tensor(row_value, value, planes, height, width, {value})
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
            self.pool.append(made)
        return made

    def piece(
        self,
        sources: list[Tensor],
        made: list[Tensor],
        planes: range | None = None,
        weights: bool = False,
    ) -> None:
        self._used.update(item.value for item in sources)
        self._pieces.append(
            {
                "inputs": tuple(self.operand(item) for item in sources),
                "outputs": tuple(self.operand(item, planes) for item in made),
                "weights": weights,
            }
        )

    def operand(self, tensor: Tensor, planes: range | None = None) -> Operand:
        own = planes or range(tensor.planes)
        return Operand(
            kind="value",
            index=tensor.value,
            offset=own.start * tensor.plane_bytes,
            dtype="float32",
            shape=(1, len(own), tensor.height, tensor.width),
        )

    def lie_in(self, item: Tensor, parent: Tensor, offset: int) -> None:
        self._values[item.value] |= {"parent": parent.value, "offset": offset}
        item.free = False
        storage = item.storage | parent.storage
        for tensor in self.pool:
            if tensor.value in storage:
                tensor.storage = storage

    def write_over(self, made: Tensor, addend: Tensor) -> None:
        """Let ``made`` lie over ``addend``; nothing else in that memory is read any more."""
        self._values[made.value] |= {"parent": addend.value, "offset": 0}
        made.free = False
        dead = set(addend.storage)
        self.pool = [item for item in self.pool if item is made or item.value not in dead]
        made.storage |= dead

    def join(self, parts: list[Tensor], joined: Tensor) -> None:
        """Let ``parts`` lie one after the other in ``joined``: no piece puts them together."""
        offset = 0
        for item in parts:
            self.lie_in(item, joined, offset)
            offset += item.planes * item.plane_bytes
        self._used.update(item.value for item in parts)

    def write_apart(self, made: Tensor) -> None:
        """Have the last piece write ``made`` as a value of another shape, which it lies in."""
        self._values.append({**self._values[made.value], "name": f"apart{len(self._values)}"})
        self._values[made.value] |= {"parent": len(self._values) - 1, "offset": 0}
        made.free = False
        written = replace(self.operand(made), index=len(self._values) - 1)
        self._pieces[-1]["outputs"] = (written,)

    def whole_piece(self, source: Tensor, made: Tensor, as_view: bool) -> None:
        """Add a piece that needs all of ``source``, perhaps as another view of it."""
        operand = self.operand(source)
        if as_view:
            view = {"name": f"view{len(self._values)}", "parent": source.value, "offset": 0}
            self._values.append({**self._values[source.value], **view})
            operand = replace(operand, index=len(self._values) - 1)
        self._used.add(source.value)
        self._pieces.append(
            {"inputs": (operand,), "outputs": (self.operand(made),), "weights": True}
        )
