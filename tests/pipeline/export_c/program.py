"""A program around an exported network: inputs from a file, outputs to another, weights from a third."""

import re
import resource
import subprocess
from collections import Counter
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from pipeline.export_c.export import Exported
from tests.pipeline.export_c.compiled import run_compiler

_MAIN = """
#include <stdio.h>
#include <string.h>
#include "NAME.h"
static float input[INPUT], output[OUTPUT];
#ifdef NAME_BUFFER
static int from_file(void *context, uint64_t offset, void *to, size_t length)
{
    return fseek(context, (long)offset, SEEK_SET) || fread(to, 1, length, context) != length;
}
#endif
#ifdef ASKS
static int from_memory(void *camera, int row, int column, int columns, float *to)
{
    int c;
    for (c = 0; c < CHANNELS; c++, to += columns)
        memcpy(to, (float *)camera + (c * HEIGHT + row) * WIDTH + column, columns * sizeof *to);
    return 0;
}
#endif
int main(int count, char **names)
{
    FILE *in = fopen(names[1], "rb"), *out = fopen(names[2], "wb");
    int error = 0;
    (void)count;
    while (!error && fread(input, sizeof input, 1, in) == 1) {
        error = CALL;
        fwrite(output, sizeof output, 1, out);
    }
    fclose(in);
    return error || fclose(out);
}
"""


def program(exported: Exported, folder: Path, *flags: str) -> Path:
    """Return the program for a network of one input and one output, compiled with ``flags``."""
    prefix = exported.api.prefix
    (source,), (result,) = exported.api.network.inputs, exported.api.network.outputs
    given, text, defined = "input, output", _MAIN, []
    if exported.api.asks:
        given = "from_memory, input, output"
        sides = zip(("CHANNELS", "HEIGHT", "WIDTH"), source.shape[1:], strict=True)
        defined = ["-DASKS", *(f"-D{name}={n}" for name, n in sides)]
    if exported.api.reads:
        text = text.replace("NAME_BUFFER", f"{prefix.upper()}_BUFFER_BYTES")
        given = f"from_file, weights, {given}"
        text = text.replace(
            "int error = 0;", 'FILE *weights = fopen(names[3], "rb");\n    int error = 0;'
        )
    sizes = [f"{prefix}_{exported.api.names[p.name]}_SIZE".upper() for p in (source, result)]
    text = text.replace("INPUT", sizes[0]).replace("OUTPUT", sizes[1])
    text = text.replace("NAME", prefix).replace("CALL", f"{prefix}_run({given})")
    (folder / "main.c").write_text(text)
    files = folder / "main.c", folder / f"{prefix}.c"
    run_compiler(*flags, *defined, "-I", folder, "-o", folder / "program", *files, "-lm")
    return folder / "program"


def answers_of(
    exported: Exported, path: Path, inputs: NDArray[np.float32], stack_bytes: int | None = None
) -> NDArray[np.float32]:
    """Return the outputs for ``inputs`` [count, ...] of a program that has ``stack_bytes`` of stack."""
    folder = path.parent
    inputs.tofile(folder / "inputs")
    names = [folder / "inputs", folder / "outputs", folder / f"{exported.api.prefix}.weights"]

    def limit() -> None:
        if stack_bytes is not None:
            resource.setrlimit(resource.RLIMIT_STACK, (stack_bytes, stack_bytes))

    done = subprocess.run(
        [path, *names], check=False, capture_output=True, text=True, preexec_fn=limit, env={}
    )
    assert done.returncode == 0, done.stderr[-2000:]
    assert not done.stderr
    shape = exported.api.network.outputs[0].shape
    return np.fromfile(folder / "outputs", np.float32).reshape(len(inputs), *shape)


def stack_bytes(exported: Exported, folder: Path) -> int:
    """Return what the deepest chain of the network's functions takes at most: all of them together."""
    source = folder / f"{exported.api.prefix}.c"
    run_compiler("-O2", "-fstack-usage", "-c", source, "-o", folder / "stack.o")
    lines = (folder / "stack.su").read_text().splitlines()
    bounded = all(line.endswith(("static", "bounded")) for line in lines)
    assert bounded, "a stack whose size only a run knows"
    return sum(int(line.split("\t")[1]) for line in lines)


def static_bytes(folder: Path) -> Counter[str]:
    """Return the bytes of each kind of section of ``stack.o``."""
    said = subprocess.run(
        ["size", "-A", folder / "stack.o"], check=True, capture_output=True, text=True
    ).stdout
    found = Counter[str]()
    for name, n_bytes in re.findall(r"^(\.\w+)\S*\s+(\d+)", said, re.MULTILINE):
        found[name] += int(n_bytes)
    return found
