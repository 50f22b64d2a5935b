"""The operators that are described, as a page.

``python -m models.network.reference`` prints docs/reference/operators.md.
"""

import sys
from collections.abc import Iterable, Iterator

from models.network.catalogue import OPERATORS, OperatorRecord
from models.network.records import NEWEST_DESCRIBED, Access

_HEAD = f"""# Is my model supported?

```sh
layerstream check models/cells/detector.onnx
```

says so within seconds, with the memory that it needs and how long it takes here; of what cannot be, which
node of the file and why. Written by `python -m models.network.reference`.

- **Files**: ONNX up to operator set {NEWEST_DESCRIBED}, weights inside or in other files, local
  functions; cfg and weights of [Darknet](darknet.md). [Cases of ONNX's own tests](limits.md#operators)
  are counted.
- **Shapes** are fixed when a model is compiled: an open batch becomes 1, any other open dimension is given
  with `--shape image=1,3,224,224`.
- **Operators** of the tables stream. What is in none, and what has no fixed sizes (control flow,
  NonMaxSuppression, strings), ONNX Runtime runs as a [resident
  piece](../explanation/operators.md#what-cannot-be-streamed) with its weights in memory, if it has a
  kernel; else `compile` refuses it.
- **Quantised** networks run as they are, as QDQ or QOperator; those marked with † become operators on
  bytes with `--precision int8`.
- **Exporters** tried: PyTorch, Ultralytics, Optimum, tf2onnx and TFLite's converter, Paddle's. Networks
  with budgets and delays: [tried models](../research/budgets.md).
- On a [GPU](../how-to/gpu.md) what has no kernel there stays on the CPU; [C](../how-to/export-c.md)
  has fewer operators, and says which.

A number is the first operator set that is meant; without one, the first of its domain.
"""
_TITLES: dict[Access, str] = {
    "elementwise": "Of each element",
    "windowed": "With windows",
    "resampling": "Other sizes",
    "movement": "Movement",
    "product": "Matrices",
    "reduction": "Reductions and norms",
    "attention": "Attention",
    "opaque": "Others, each run as a whole",
}


def markdown() -> str:
    """Return the page."""
    return "\n".join([_HEAD, *_sections(OPERATORS.values())])


def _sections(rows: Iterable[OperatorRecord]) -> Iterator[str]:
    plain = [row for row in rows if not (row.is_blocked or " " in row.name)]
    for access, title in _TITLES.items():
        names = sorted(map(_named, (row for row in plain if row.access == access)), key=str.lower)
        yield f"## {title}\n\n{', '.join(names)}\n"


def _named(row: OperatorRecord) -> str:
    first = row.versions[0]
    mark = "" if row.quantisable == "no" else "†"
    return f"{row.name}{mark}" + (f" {first}" if first > 1 else "")


if __name__ == "__main__":
    sys.stdout.write(markdown())
