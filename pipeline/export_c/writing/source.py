"""The source: the functions that are used, the weights or the buffer for them, the arena, and the run."""

from collections.abc import Iterator, Sequence

import numpy as np

from pipeline.export_c.lowering.steps import Function, Named, Program, Step
from pipeline.export_c.memory import Memory
from pipeline.export_c.writing.api import C_TYPES, Api
from pipeline.export_c.writing.expressions import Expressions, in_bands, lines
from pipeline.export_c.writing.kernels import Block, needed
from pipeline.export_c.writing.names import comment
from pipeline.export_c.writing.weights import HEADER_BYTES, MAGIC, VERSION, Loads, Stored

_FLOAT_BYTES = 4
#: Files of C's library, and the names that come from them.
_INCLUDES = {
    "float.h": {"FLT_MAX"},
    "math.h": {"expf", "INFINITY"},
    "string.h": {"memcpy", "memset"},
}


class Source:
    """Writes the source of one network; ``loads``: what each step reads, None: weights are constants."""

    def __init__(
        self,
        api: Api,
        program: Program,
        memory: Memory,
        stored: Stored,
        loads: Sequence[Loads] | None,
    ) -> None:
        self._api = api
        self._memory = memory
        self._stored = stored
        self._loads = loads
        self._write = Expressions(program.values, api.names, memory, stored)
        self._values = program.values

    @property
    def buffer_bytes(self) -> int:
        """Bytes of the buffer of weights; 0: there is none."""
        if self._loads is None:
            return 0
        most = max((loads.n_bytes for loads in self._loads), default=0)
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
        for text, name in self._write.records.items():
            yield text.replace("NAME", name, 1)
        yield ""
        if self._api.reads:
            yield from _checks(self._api, self._stored.n_bytes, crc)
        yield from self._accessors()
        yield from run

    def _includes(self, blocks: Sequence[Block], run: Sequence[str]) -> Iterator[str]:
        words = {word for block in blocks for word in block.words}
        words |= {"memcpy"} if self._api.reads else set()
        finite = all(np.isfinite(array).all() for array in self._stored.arrays)
        words |= set() if finite and "INFINITY" not in " ".join(run) else {"INFINITY"}
        found = [f"#include <{name}>" for name, held in _INCLUDES.items() if held & words]
        yield from (*found, "") if found else ()

    def _weights(self) -> Iterator[str]:
        for index, array in enumerate(self._stored.arrays if self._loads is None else ()):
            kind = C_TYPES[array.dtype.name]
            yield f"static const {kind} w{index}[{array.size}] = {{"
            yield from (f"    {line}" for line in lines(array))
            yield "};"
            yield ""

    def _memory_lines(self) -> Iterator[str]:
        if self._memory.arena_bytes:
            yield f"static float arena[{-(-self._memory.arena_bytes // _FLOAT_BYTES)}];"
        if self._loads is not None:
            yield f"static float buffer[{self.buffer_bytes // _FLOAT_BYTES}];"
        yield ""

    def _accessors(self) -> Iterator[str]:
        for port, declaration in self._api.accessors():
            yield declaration
            yield from ("{", f"    return {self._write.pointer(port.name)};", "}", "")

    def _run(self) -> Iterator[str]:
        upper = self._api.prefix.upper()
        yield self._api.run
        yield "{"
        if any(self._in_parts(number) for number in range(len(self._memory.steps))):
            yield "    int first, count;"
        if any(map(in_bands, self._memory.steps)):
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
        for number, step in enumerate(self._memory.steps):
            yield from self._step(number, step)
        yield f"    return {upper}_OK;"
        yield "}"

    def _in_parts(self, number: int) -> bool:
        loads = self._loads[number] if self._loads is not None else None
        return loads is not None and loads.by_rows is not None

    def _step(self, number: int, step: Step) -> Iterator[str]:
        shape = list(self._values[step.output].shape)
        yield f"    /* {comment(f'{step.label} {shape}')} */"
        loads = None if self._loads is None else self._loads[number]
        for load in () if loads is None else loads.whole:
            yield from self._read(
                str(self._stored.offsets[load.number]), load.at, str(load.n_bytes)
            )
        body = [*self._source(step), *self._calls(step, loads)]
        if step.bands is None or not in_bands(step):
            yield from body
            return
        height, most = step.bands.height, step.bands.rows
        yield f"    for (row = 0; row < {height}; row += rows) {{"
        yield f"        rows = {height} - row < {most} ? {height} - row : {most};"
        yield from (f"    {line}" for line in body)
        yield "    }"

    def _source(self, step: Step) -> Iterator[str]:
        """Yield what brings the rows of an input."""
        source = step.bands.source if step.bands is not None else None
        if source is None:
            return
        call = self._write.source(step, source, ("pixels", "camera") if source.asks else ())
        if not source.asks:
            yield f"    {call};"
            return
        yield f"    if ({call})"
        yield f"        return {self._api.prefix.upper()}_INPUT_FAILED;"

    def _calls(self, step: Step, loads: Loads | None) -> Iterator[str]:
        if loads is None or loads.by_rows is None:
            yield f"    {self._write.call(step, loads, in_parts=False)};"
            return
        rows, row = step.rows, loads.by_rows
        yield f"    for (first = 0; first < {rows}; first += count) {{"
        yield f"        count = {rows} - first < {loads.rows} ? {rows} - first : {loads.rows};"
        start = f"{self._stored.offsets[row.number]} + (uint64_t)first * {row.row_bytes}"
        for line in self._read(start, row.at, f"(size_t)count * {row.row_bytes}"):
            yield f"    {line}"
        yield f"        {self._write.call(step, loads, in_parts=True)};"
        yield "    }"

    def _read(self, start: str, at: int, length: str) -> Iterator[str]:
        place = f"buffer + {at // _FLOAT_BYTES}" if at else "buffer"
        yield f"    if (read(context, {start}, {place}, {length}))"
        yield f"        return {self._api.prefix.upper()}_READ_FAILED;"


def _functions(steps: Sequence[Step]) -> set[str]:
    """Return the names of the C functions and structs that ``steps`` name."""
    named = {
        item.name
        for step in steps
        for item in step.all_arguments
        if isinstance(item, Function | Named) and item.name
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
