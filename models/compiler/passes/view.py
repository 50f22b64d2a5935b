"""Networks between passes as text, in the syntax that models/graphs/text.py reads."""

from pathlib import Path

from models.compiler.passes.record import Compilation, Pass
from models.graphs.graph import Graph, with_files
from models.graphs.text import to_text

#: The file in the folder of a compilation with large weights that lie in no other.
_WEIGHTS = "between.data"


def is_same(one: Graph | None, other: Graph) -> bool:
    """Return whether no pass changed nodes or constants between two graphs."""
    return (
        one is not None
        and one.nodes is other.nodes
        and one.constants is other.constants
        and one.outputs is other.outputs
    )


class Printing:
    """Writes the network after each pass that changes it as text into ``folder``: an observer of passes."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._last: Graph | None = None
        self._count = 0

    def before(self, work: Compilation, step: Pass) -> None:
        """Write nothing: it was written after the pass before."""

    def after(self, work: Compilation, step: Pass) -> None:
        """Write NUMBER-PASS.txt.

        Raises:
            OSError: it cannot be written.
        """
        self._count += 1
        last, self._last = self._last, work.graph
        if not is_same(last, self._last):
            self._folder.mkdir(parents=True, exist_ok=True)
            text = to_text(with_files(work.graph, work.folder / _WEIGHTS), work.folder)
            (self._folder / f"{self._count:02}-{step.name}.txt").write_text(text, "utf-8")
