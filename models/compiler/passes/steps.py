"""What passes do beyond one rewriter: files, ONNX Runtime's own steps, and a message that becomes a graph.

Pieces cut from the result later take weights, reordered in blocks, as inputs. Weights stay in files:
ONNX Runtime maps them, and what holds a model twice as large as memory is a working file.
"""

from collections.abc import Callable
from dataclasses import replace

import onnxruntime as ort

from models.compiler.analysis.lean_order import with_less_kept
from models.compiler.analysis.node_groups import with_fused, with_regions
from models.compiler.cutting.activations import activation_groups, launches_of_groups
from models.compiler.cutting.bottlenecks import find_bottlenecks
from models.compiler.cutting.chunks import default_chunk_bytes
from models.compiler.cutting.partition import CutGraph, refusals
from models.compiler.cutting.quantised_tasks import before_tables, grouped, quantised_groups
from models.compiler.cutting.row_nodes import find_rows
from models.compiler.optimising.by_onnx import check
from models.compiler.optimising.by_onnxruntime import optimised, types_of, with_open_branches
from models.compiler.optimising.byte_tables import look_up_results
from models.compiler.optimising.integer_weights import (
    QUANTISES_WEIGHTS,
    has_integers,
    make_floats,
    widened,
)
from models.compiler.optimising.model_checks import check_agreement, check_scores
from models.compiler.optimising.normalise import settle_pool, store_by_row
from models.compiler.optimising.quantised_layers import LEAST_PART_BYTES, stream_quantised
from models.compiler.optimising.refused_nodes import refusal
from models.compiler.passes.record import Compilation
from models.errors import OnnxError
from models.graphs.graph import Graph, domains, with_weights_in
from models.graphs.rewriter import Rewriter
from models.runtime.heap import trim_heap
from models.runtime.sessions import SessionError, reason

#: The optimiser that makes ONNX Runtime's blocked layout, and the one that puts sums into convolutions.
BLOCKS_CHANNELS, FUSES_SUMS = "NchwcTransformer", "ConvAddActivationFusion"


def by_onnxruntime(
    step: str, level: ort.GraphOptimizationLevel, *without: str
) -> Callable[[Compilation], None]:
    """Return the pass that lets ONNX Runtime rewrite the graph.

    ``step``: what the file with its weights is called then. ``level``: which optimisers; ``without``: those
    of them that do nothing.
    """

    def run(work: Compilation) -> None:
        source, result = (work.folder / f"{name}.onnx" for name in (work.step, step))
        # With floats between quantised activations ONNX Runtime would quantise weights again.
        but = ";".join([QUANTISES_WEIGHTS] * bool(work.graph.dequantised) + [*without])
        work.graph = optimised(work.graph, source, result, level, work.path, but)
        work.step, work.is_typed = step, False

    return run


def rewriter(rewriter_of: Callable[[Compilation], Rewriter]) -> Callable[[Compilation], None]:
    """Return the pass that runs the rewriter which is rewriter_of for a compilation."""

    def run(work: Compilation) -> None:
        work.graph = rewriter_of(work).run()

    return run


def by_function(change: Callable[[Graph], Graph]) -> Callable[[Compilation], None]:
    """Return the pass that lets the graph be what ``change`` returns for it."""

    def run(work: Compilation) -> None:
        work.graph = change(work.graph)

    return run


def move_weights_out(work: Compilation) -> None:
    """Write large weights to a file."""
    work.graph = with_weights_in(work.graph, (work.folder / work.step).with_suffix(".data"))


def check_valid(work: Compilation) -> None:
    """Check the graph by the ONNX standard."""
    check(work.graph, work.folder / "checked.onnx", work.path)
    work.is_valid = True


def open_branches(work: Compilation) -> None:
    """Open the lengths that branches read, if only so the graph loads."""
    work.graph = with_open_branches(work.graph, work.folder)


def infer_types(work: Compilation) -> None:
    """Infer types and check what relies on them: that shapes agree, and scores."""
    work.graph = work.graph.with_types(types_of(work.graph, work.path, work.folder))
    trim_heap()
    check_scores(work.graph, work.path)
    _check_shapes(work)


def _check_shapes(work: Compilation) -> None:
    graph = work.graph
    shapes = {name: array.shape for name, array in graph.constants.items()}
    shapes |= {name: array.shape for name, array in graph.values.items()}
    check_agreement(graph.live(), shapes, work.path)


def dequantise_weights(work: Compilation) -> None:
    """Compute what DequantizeLinear makes of constants; only biases may stay integers."""
    try:
        graph = make_floats(work.graph, work.folder)
    except SessionError as exc:
        raise OnnxError(
            f"{work.path}: ONNX Runtime refuses it: {refusal(work.graph, reason(exc))}"
        ) from exc
    if graph.dequantised:
        work.graph = graph


def find_dequantised(work: Compilation) -> None:
    """Note whether DequantizeLinear reads constants; those of 4 bits have 8 then."""
    work.has_integers = has_integers(work.graph)
    if work.has_integers:
        work.graph = widened(work.graph, work.folder)


def correct_pools(work: Compilation) -> None:
    """Infer types until no pool has another output than is computed, and check that shapes agree."""
    while True:
        graph = work.graph.with_types(types_of(work.graph, work.path, work.folder))
        work.graph = settle_pool(graph)
        if work.graph is graph:
            break
    work.is_typed = True
    _check_shapes(work)


def keep_live(work: Compilation) -> None:
    """Keep the nodes that an output needs, and the operator sets that they are of."""
    used = domains(work.graph) | {""}
    work.graph = replace(
        work.graph,
        nodes=work.graph.live(),
        opsets={name: version for name, version in work.graph.opsets.items() if name in used},
    )
    total = work.graph.all_weight_bytes
    work.chunk_bytes = work.finest_bytes or default_chunk_bytes(total)


def store_rows(work: Compilation) -> None:
    """Store matrices by output row."""
    work.graph = store_by_row(work.graph)


def stream_layers(work: Compilation) -> None:
    """Let quantised layers stream, but those that are one piece with others."""
    graph, part_bytes = work.graph, work.finest_bytes or max(work.chunk_bytes, LEAST_PART_BYTES)
    single = grouped(graph, quantised_groups(graph, part_bytes))
    work.graph = stream_quantised(graph, part_bytes, work.folder, single)


def keep_less(work: Compilation) -> None:
    """Put nodes into an order in which fewer bytes live at once."""
    work.graph = with_less_kept(work.graph)


def add_byte_tables(work: Compilation) -> None:
    """Put tables behind quantised layers."""
    work.graph = look_up_results(work.graph, work.folder, before_tables(work.graph))


def find_regions(work: Compilation) -> None:
    """Begin to divide the graph, or begin again, knowing more of what has to be resident."""
    work.undivided = work.undivided or work.graph
    work.divided = CutGraph(with_regions(work.undivided, work.refused))


def group_layers(work: Compilation) -> None:
    """Group quantised layers."""
    work.divided.fused = quantised_groups(work.graph)


def fuse_activations(work: Compilation) -> None:
    """Group layers with activations that cannot lie over what they read, small ones with another node."""
    groups = {**activation_groups(work.graph), **work.divided.fused}
    work.divided.fused = {**launches_of_groups(work.graph, work.chunk_bytes, groups), **groups}


def fuse_launches(work: Compilation) -> None:
    """Group what a GPU computes in one kernel."""
    work.graph, work.divided.fused = with_fused(work.graph)


def run_on_rows(work: Compilation) -> None:
    """Find what can run on rows."""
    work.divided.rows = find_rows(
        work.graph, work.target, {} if work.on_cpu else work.divided.fused
    )


def run_some_channels(work: Compilation) -> None:
    """Find what can run on some channels at a time."""
    divided, block = work.divided, work.target.block
    divided.bottlenecks = list(
        find_bottlenecks(divided.graph, divided.rows, divided.aliases.elided, block)
    )


def load_pieces(work: Compilation) -> str | None:
    """Load every piece; divide the graph again where ONNX Runtime refuses one."""
    more = refusals(work.divided, work.path, work.fault)
    work.refused |= more
    return "find-regions" if more else None
