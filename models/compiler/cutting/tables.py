"""Tables of which a request needs a few rows: an embedding, indexed by what comes with the request.

A Gather from weights along the first axis is one launch of a few microseconds, with weights of many
megabytes. Where its indices, whose count is known, touch at most half of the pages of the table, these are
read alone while a request runs (pipeline/execution/table_reads.py). The graph and weights.bin stay as they
are; checksums of the pages are resident, as the vectors that chunks share.
"""

from collections.abc import Iterator
from dataclasses import replace
from math import prod

import numpy as np
import xxhash
from numpy.typing import NDArray

from models.compiler.analysis.pieces import CutPiece, Slice
from models.compiler.cutting.layout import slice_bytes
from models.compiler.cutting.partition import CutGraph
from models.graphs.graph import Edits, Graph
from models.network.names import Op
from models.packs.records.pieces import INDEX_TYPES, PAGE_BYTES, max_pages

#: A smaller table is one read, and its ring not much larger than those of other layers.
MIN_TABLE_BYTES = 1 << 20
#: A table that is not so many times as large as the pages that a request may touch is streamed.
_MIN_RATIO = 2


def find_tables(divided: CutGraph) -> None:
    """Find the pieces that read rows of a table, and add the checksums of its pages to the constants."""
    graph = divided.graph
    edits, names = Edits(graph), dict[str, str]()
    for index, piece in enumerate(divided.pieces):
        table = _table(graph, piece)
        if table is None:
            continue
        if table.name not in names:
            checksums = page_checksums(slice_bytes(graph, table))
            names[table.name] = edits.constant(f"{table.name}/page_checksums", checksums)
        name = names[table.name]
        shared = Slice(name, edits.constants[name].shape)
        divided.pieces[index] = replace(
            piece, shared_weights=(*piece.shared_weights, shared), page_checksums=shared
        )
    if names:
        divided.graph = edits.applied(graph.nodes)


def _table(graph: Graph, piece: CutPiece) -> Slice | None:
    """Return the table of which ``piece`` needs a few rows; None: it does something else, or needs most."""
    if piece.end_node - piece.first_node != 1 or piece.region is not None:
        return None
    node = graph.nodes[piece.first_node]
    if node.operator != Op.Gather or len(piece.weights) != 1 or len(piece.inputs) != 2:
        return None
    (table,), (data, indices) = piece.weights, node.inputs
    if table.name != data or indices not in graph.values or node.attributes.get("axis", 0) != 0:
        return None
    array, constant = graph.values[indices], graph.constants[data]
    if array.dtype not in INDEX_TYPES or not constant.nbytes or table.shape != constant.shape:
        return None
    if any(not _is_lookup(graph, reader, data) for reader in graph.readers[data]):
        return None
    touched = prod(array.shape) * max_pages(constant.nbytes // constant.shape[0]) * PAGE_BYTES
    is_lookup = MIN_TABLE_BYTES <= constant.nbytes >= _MIN_RATIO * touched
    return table if is_lookup else None


def _is_lookup(graph: Graph, reader: int, table: str) -> bool:
    """Return whether node ``reader`` takes rows of ``table``, and nothing else of it."""
    node = graph.nodes[reader]
    return (
        node.operator == Op.Gather
        and node.inputs[0] == table != node.inputs[1]
        and node.attributes.get("axis", 0) == 0
    )


def page_checksums(table: NDArray[np.uint8]) -> NDArray[np.uint64]:
    """Return the xxh3-64 of each page of ``table``, uint8, filled up with zeros to whole pages."""
    return np.fromiter(map(xxhash.xxh3_64_intdigest, _pages(table)), np.uint64)


def _pages(table: NDArray[np.uint8]) -> Iterator[bytes | memoryview]:
    for first in range(0, len(table), PAGE_BYTES):
        page = table[first : first + PAGE_BYTES]
        yield page.data if len(page) == PAGE_BYTES else page.tobytes().ljust(PAGE_BYTES, b"\0")
