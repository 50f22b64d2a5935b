"""The list of passes as a page.

``python -m models.compiler.passes.reference`` prints docs/reference/passes.md.
"""

import sys
from collections.abc import Iterator

from models.compiler.passes.record import Level, Pass
from models.compiler.passes.table import PASSES, TARGETS

_HEAD = """# Passes of the compiler

Written by `python -m models.compiler.passes.reference`.

```sh
layerstream compile net.onnx -o repository/net --explain   # what each pass changes
layerstream compile net.onnx -o repository/net --force --without find-rows
layerstream compile net.onnx -o repository/net --force --verify   # check networks after each pass
layerstream compile net.onnx -o repository/net --force --find-fault   # name the first pass that is wrong
layerstream compile net.onnx -o repository/net --force --print-passes passes   # write each network as text
```

Passes run from top to bottom; names in bold are required. `--without` also excludes what needs the pass.
**Targets**: `blocked`, a CPU whose convolutions have blocks of channels; `plain`, any CPU; `gpu`.
**Difference** between answers with a pass and without it, if any: rounding of sums in another order
(2e-5 of the largest value), or within a bound (1e-4; with quantised numbers 5 % or one step).
"""
_LEVELS: dict[Level, str] = {
    "meaning": "Meaning: ONNX operators, until ONNX Runtime optimises them for the target",
    "layout": "Layout: as ONNX Runtime optimised it",
    "pieces": "Pieces: in the order, and divided as, it streams",
}
_DIFFERENCES = {
    "same bits": "",
    "other order of sums": "sums",
    "within a bound": "bound",
}
_COLUMNS = ("Pass", "Why", "Needs; difference; targets")


def page() -> str:
    """Return the page."""
    return "\n".join([_HEAD, *_lines()])


def _lines() -> Iterator[str]:
    printed: set[str] = set()
    for level, title in _LEVELS.items():
        yield f"## {title}\n"
        yield f"| {' | '.join(_COLUMNS)} |"
        yield f"|{'---|' * len(_COLUMNS)}"
        again = []
        for step in PASSES:
            if step.level != level:
                continue
            if step.name in printed:
                again.append(f"`{step.name}`")
                continue
            printed.add(step.name)
            yield f"| {' | '.join(_cells(step))} |"
        yield ""
        if again:
            yield f"Where weights became floats these run once more: {', '.join(again)}.\n"


def _cells(step: Pass) -> tuple[str, ...]:
    targets = [name for name, passes in TARGETS.items() if step in passes]
    facts = (
        ", ".join(f"`{name}`" for name in step.needs),
        _DIFFERENCES[step.error],
        "" if len(targets) == len(TARGETS) else ", ".join(targets),
    )
    return (
        f"**`{step.name}`**" if step.required else f"`{step.name}`",
        step.reason,
        "; ".join(filter(None, facts)),
    )


if __name__ == "__main__":
    sys.stdout.write(page())
