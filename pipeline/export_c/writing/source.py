"""The source: the functions that are used, the weights or the buffer for them, the arena, and the run."""

from collections.abc import Iterator, Sequence

import numpy as np

from pipeline.export_c.lowering.calls import (
    Argument,
    Band,
    FilterRange,
    Function,
    KernelStep,
    Scratch,
    StepProgram,
    StructConstant,
    ValuePointer,
    Weight,
)
from pipeline.export_c.memory import PlacedMemory, scratch_of
from pipeline.export_c.network.network import ExportError
from pipeline.export_c.writing.api import Api
from pipeline.export_c.writing.c_text import (
    C_TYPES,
    INCLUDES,
    Definition,
    comment,
    lines,
    needed,
    number,
)
from pipeline.export_c.writing.stored_weights import (
    HEADER_BYTES,
    MAGIC,
    VERSION,
    Loads,
    StoredWeights,
    WeightRead,
)

_FLOAT_BYTES = 4
_LARGEST = 2**31 - 1


class SourceWriter:
    """Writes the source of one network; ``loads``: what each step reads, None: weights are constants."""

    def __init__(
        self,
        api: Api,
        program: StepProgram,
        memory: PlacedMemory,
        stored: StoredWeights,
        loads: Sequence[Loads] | None,
    ) -> None:
        self._api = api
        self._memory = memory
        self._stored = stored
        self._loads: Sequence[Loads | None] = loads or [None] * len(memory.steps)
        self._values = program.values
        self._structs: dict[str, str] = {}  # those that were needed, by their text

    @property
    def buffer_bytes(self) -> int:
        """Bytes of the buffer of weights; 0: there is none."""
        if not self._api.reads:
            return 0
        most = max((loads.n_bytes for loads in self._loads if loads is not None), default=0)
        return -(-max(most, HEADER_BYTES) // _FLOAT_BYTES) * _FLOAT_BYTES

    def lines(self, made_by: str, crc: int) -> Iterator[str]:
        """Yield the source, line by line; ``crc``: of the file of weights behind its header."""
        run = list(self._run())
        names = _functions(self._memory.steps)
        blocks = needed({*names, "crc32_of"} if self._api.reads else names)
        yield f"/* {comment(made_by)} */"
        yield f'#include "{self._api.prefix}.h"'
        yield ""
        yield from self._includes(blocks, run)
        for block in blocks:
            yield from (*block.text.splitlines(), "")
        yield from self._weights()
        yield from self._memory_lines()
        for text, name in self._structs.items():
            yield text.replace("NAME", name, 1)
        yield ""
        if self._api.reads:
            yield from _checks(self._api, self._stored.n_bytes, crc)
        yield from self._accessors()
        yield from run

    def _includes(self, blocks: Sequence[Definition], run: Sequence[str]) -> Iterator[str]:
        words = {word for block in blocks for word in block.words}
        words |= {"memcpy"} if self._api.reads else set()
        finite = all(np.isfinite(array).all() for array in self._stored.arrays)
        words |= set() if finite and "INFINITY" not in " ".join(run) else {"INFINITY"}
        lines = [f"#include <{name}>" for name, declared in INCLUDES.items() if declared & words]
        yield from (*lines, "") if lines else ()

    def _weights(self) -> Iterator[str]:
        for index, array in enumerate(() if self._api.reads else self._stored.arrays):
            kind = C_TYPES[array.dtype.name]
            yield f"static const {kind} w{index}[{array.size}] = {{"
            yield from (f"    {line}" for line in lines(array))
            yield "};"
            yield ""

    def _memory_lines(self) -> Iterator[str]:
        if self._memory.arena_bytes:
            yield f"static float arena[{-(-self._memory.arena_bytes // _FLOAT_BYTES)}];"
        if self._api.reads:
            yield f"static float buffer[{self.buffer_bytes // _FLOAT_BYTES}];"
        yield ""

    def _accessors(self) -> Iterator[str]:
        for port, declaration in self._api.accessors():
            yield declaration
            yield from ("{", f"    return {self._pointer(port.name)};", "}", "")

    def _run(self) -> Iterator[str]:
        upper = self._api.prefix.upper()
        yield self._api.run
        yield "{"
        if any(loads is not None and loads.by_rows is not None for loads in self._loads):
            yield "    int first, count;"
        if any(map(_in_bands, self._memory.steps)):
            yield "    int row, rows;"
        if self._api.reads:
            yield "    int error;"
        pointers = self._api.pointers
        if pointers:
            yield f"    if ({' || '.join(f'!{name}' for name in pointers)})"
            yield f"        return {upper}_NO_POINTER;"
        if self._api.reads:
            yield "    if ((error = check_header(read, context)) != 0)"
            yield "        return error;"
        for step, loads in zip(self._memory.steps, self._loads, strict=True):
            yield from self._step(step, loads)
        yield f"    return {upper}_OK;"
        yield "}"

    def _step(self, step: KernelStep, loads: Loads | None) -> Iterator[str]:
        shape = list(self._values[step.output].shape)
        yield f"    /* {comment(f'{step.label} {shape}')} */"
        for load in () if loads is None else loads.whole:
            yield from self._read(
                str(self._stored.offsets[load.number]), load.at, str(load.n_bytes)
            )
        body = [*self._rows_of_input(step), *self._calls(step, loads)]
        if step.bands is not None and _in_bands(step):
            body = _loop("row", "rows", step.bands.height, step.bands.rows, body)
        yield from body

    def _rows_of_input(self, step: KernelStep) -> Iterator[str]:
        """Yield what brings the rows of an input."""
        source = step.bands.source if step.bands is not None else None
        if source is None:
            return
        texts = ["pixels", "camera"] if source.asks else []
        texts += [self._text(step, item, None) for item in source.arguments]
        call = f"{source.kernel}({', '.join(texts)})"
        if not source.asks:
            yield f"    {call};"
            return
        yield f"    if ({call})"
        yield f"        return {self._api.prefix.upper()}_INPUT_FAILED;"

    def _calls(self, step: KernelStep, loads: Loads | None) -> list[str]:
        texts = [self._text(step, item, loads) for item in step.all_arguments]
        body = [f"    {step.kernel}({', '.join(texts)});"]
        if loads is None or loads.by_rows is None or step.rows is None:
            return body
        row = loads.by_rows
        start = f"{self._stored.offsets[row.number]} + (uint64_t)first * {row.row_bytes}"
        read = self._read(start, row.at, f"(size_t)count * {row.row_bytes}")
        return _loop("first", "count", step.rows, loads.rows, [*read, *body])

    def _read(self, start: str, at: int, length: str) -> Iterator[str]:
        place = f"buffer + {at // _FLOAT_BYTES}" if at else "buffer"
        yield f"    if (read(context, {start}, {place}, {length}))"
        yield f"        return {self._api.prefix.upper()}_READ_FAILED;"

    def _text(self, step: KernelStep, item: Argument, loads: Loads | None) -> str:
        match item:
            case ValuePointer(name, offset):
                text = self._pointer(name, offset)
            case Scratch():
                text = self._scratch(step, item)
            case Weight():
                text = self._weight(item, loads)
            case StructConstant():
                text = f"&{self._record(step, item)}"
            case Function(name, given):
                text = ", ".join((name or "NULL", *map(number, given)))
            case FilterRange(total):
                by_rows = loads is not None and loads.by_rows is not None
                text = "first, count" if by_rows else f"0, {total}"
            case Band(total):
                text = "row, rows" if _in_bands(step) else f"0, {total}"
            case int():
                text = self._whole(step, item)
            case _:
                text = "NULL" if item is None else number(item)
        return text

    def _pointer(self, name: str, offset: int = 0) -> str:
        """Return where the value ``name`` lies, ``offset`` bytes behind its begin."""
        place = self._memory.places[name]
        base = "arena" if place.port is None else self._api.names[place.port]
        base_dtype = "float32" if place.port is None else self._values[place.port].dtype
        return _at(base, base_dtype, self._values[name].dtype, place.offset + offset)

    def _scratch(self, step: KernelStep, item: Scratch) -> str:
        assert step.bands is not None
        start = self._memory.places[scratch_of(step)].offset
        return _at("arena", "float32", item.dtype, start + step.bands.offsets()[item.strip])

    def _weight(self, weight: Weight, loads: Loads | None) -> str:
        index = self._stored.number(weight)
        if loads is None:
            return f"w{index}"
        at = _load(weight, index, loads).at
        return _at("buffer", "float32", weight.array.dtype.name, at)

    def _record(self, step: KernelStep, record: StructConstant) -> str:
        fields = ", ".join(
            f".{name} = {self._field(step, value)}" for name, value in record.fields.items()
        )
        text = f"static const struct {record.kind} NAME = {{{fields}}};"
        return self._structs.setdefault(text, f"g{len(self._structs)}")

    def _field(self, step: KernelStep, value: int | float | tuple[int, ...]) -> str:
        if isinstance(value, tuple):
            return "{" + ", ".join(self._whole(step, each) for each in value) + "}"
        return number(value) if isinstance(value, float) else self._whole(step, value)

    def _whole(self, step: KernelStep, value: int) -> str:
        if abs(value) > _LARGEST:
            message = f"node {step.label!r}: {value} elements are more than an int counts"
            raise ExportError(message, step.label)
        return str(int(value))


def _in_bands(step: KernelStep) -> bool:
    """Return whether ``step`` computes some rows at a time."""
    return step.bands is not None and step.bands.rows < step.bands.height


def _load(weight: Weight, index: int, loads: Loads) -> WeightRead:
    if weight.rows:
        assert loads.by_rows is not None
        return loads.by_rows
    return next(load for load in loads.whole if load.number == index)


def _at(base: str, held: str, kind: str, offset: int) -> str:
    """Return a pointer to a ``kind``, ``offset`` bytes from the array ``base`` of ``held``."""
    if held != kind:
        base = f"({C_TYPES[kind]} *){base}"
    elements = offset // np.dtype(kind).itemsize
    return f"{base} + {elements}" if elements else base


def _loop(index: str, count: str, total: int, most: int, body: Sequence[str]) -> list[str]:
    """Return ``body`` for ``count`` of ``total`` at a time, at ``most`` so many, from ``index`` on."""
    return [
        f"    for ({index} = 0; {index} < {total}; {index} += {count}) {{",
        f"        {count} = {total} - {index} < {most} ? {total} - {index} : {most};",
        *(f"    {line}" for line in body),
        "    }",
    ]


def _functions(steps: Sequence[KernelStep]) -> set[str]:
    """Return the names of the C functions and structs that ``steps`` name."""
    named = {
        item.name
        for step in steps
        for item in step.all_arguments
        if isinstance(item, Function) and item.name
    }
    sources = (step.bands.source for step in steps if step.bands is not None)
    named |= {source.kernel for source in sources if source is not None}
    return named | {step.kernel for step in steps}


def _checks(api: Api, n_bytes: int, crc: int) -> Iterator[str]:
    """Yield the functions that look at the file of weights."""
    upper = api.prefix.upper()
    yield from f"""\
/* Whether the callback reads the weights of this source: their size and checksum are in the header. */
static int check_header({api.prefix}_read read, void *context)
{{
    uint32_t words[{HEADER_BYTES // 4}];
    uint64_t size;
    if (read(context, 0, words, sizeof words))
        return {upper}_READ_FAILED;
    memcpy(&size, words + 2, sizeof size);
    if (words[0] != {MAGIC:#010x}u || words[1] != {VERSION}u || size != {n_bytes}u
        || words[4] != {crc:#010x}u)
        return {upper}_WRONG_WEIGHTS;
    return {upper}_OK;
}}

{api.check}
{{
    uint64_t at = {HEADER_BYTES};
    uint32_t crc = 0;
    int error;
    if (!read)
        return {upper}_NO_POINTER;
    if ((error = check_header(read, context)) != 0)
        return error;
    while (at < {n_bytes}u) {{
        const uint64_t left = {n_bytes}u - at;
        const size_t n = left < sizeof buffer ? (size_t)left : sizeof buffer;
        if (read(context, at, buffer, n))
            return {upper}_READ_FAILED;
        crc = crc32_of(crc, buffer, n);
        at += n;
    }}
    return crc == {crc:#010x}u ? {upper}_OK : {upper}_WRONG_WEIGHTS;
}}
""".splitlines()
    yield ""
