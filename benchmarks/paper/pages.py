"""Figures of the paper's networks become pages: figures.json is measured, all else is made of it."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.paper.markdown import insert, summary, table
from benchmarks.paper.reported import PaperNetwork
from cli.plots.measurements import plot_pipeline

# Figures and plots lie beside the page of tables, which links to them.
FOLDER = "streaming"
# A table and plots, for readers of the paper; one table of what to expect, for users.
FULL, SHORT = "research/demand-layering.md", "explanation/streaming.md"


class Pages:
    """The figures at one ``resolution`` (None: the paper's) and the pages in ``docs`` that show them."""

    def __init__(
        self, docs: Path, networks: Sequence[PaperNetwork], resolution: int | None
    ) -> None:
        self.docs, self.networks = docs, networks
        self.mark = "" if resolution is None else f"-{resolution}"
        self.folder = (docs / FULL).parent / FOLDER
        self.path = self.folder / f"figures{self.mark}.json"
        known = json.loads(self.path.read_text("utf-8")) if self.path.exists() else {}
        self.documents: dict[str, dict[str, Any]] = dict(known)

    def keep(self, name: str, document: dict[str, Any]) -> None:
        """Write the figures of one network, and the pages with them."""
        self.documents[name] = document
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self.path.write_text(json.dumps(self.documents, indent=1) + "\n", encoding="utf-8")
        self.write()

    def write(self) -> None:
        """Write plots and tables of all figures.

        Raises:
            ValueError: a page lacks the marks that tables stand between.
            PlotError: a plot cannot be written.
        """
        for network in self.networks:
            if network.name in self.documents:
                document = self.documents[network.name]
                # Of other sizes than the paper's no page shows the search.
                plot_pipeline({**document, "searches": {}} if self.mark else document, self.folder)
        if not self.mark:  # the paper's table; of other sizes there are plots, and figures as JSON
            self._insert(FULL, table(self.networks, self.documents, FOLDER), self.mark)
        self._insert(SHORT, summary(self.networks, self.documents), f"-summary{self.mark}")

    def _insert(self, name: str, generated: str, mark: str) -> None:
        page = self.docs / name
        page.write_text(insert(page.read_text("utf-8"), generated, mark), encoding="utf-8")
