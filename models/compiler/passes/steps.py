"""What passes do beyond one rewriter: files, ONNX Runtime's own steps, and a message that becomes a graph.

Pieces cut from the result later take weights, reordered in blocks, as inputs. Weights stay in files:
ONNX Runtime maps them, and what holds a model twice as large as memory is a working file.
"""

from collections.abc import Callable, Mapping
from dataclasses import replace

import onnx
import onnxruntime as ort

from models.compiler.analysis.graph import Graph
from models.compiler.analysis.lean_order import with_less_kept
from models.compiler.analysis.node_groups import with_fused, with_regions
from models.compiler.cutting.bottlenecks import find_bottlenecks
from models.compiler.cutting.chunks import default_chunk_bytes
from models.compiler.cutting.partition import CutGraph, refusals
from models.compiler.cutting.quantised_tasks import before_tables, grouped, quantised_groups
from models.compiler.cutting.row_nodes import find_rows
from models.compiler.optimising.along_rows import AlongRows
from models.compiler.optimising.by_onnxruntime import move_weights, optimise_model, types_of
from models.compiler.optimising.byte_tables import look_up_results
from models.compiler.optimising.integer_weights import QUANTISES_WEIGHTS, find_integers, make_floats
from models.compiler.optimising.layout import Layout
from models.compiler.optimising.model_checks import check, check_agreement
from models.compiler.optimising.normalise import (
    domains,
    has_dtype,
    settle_pool,
    store_by_row,
    take_tensors,
)
from models.compiler.optimising.quantised_layers import LEAST_PART_BYTES, stream_quantised
from models.compiler.passes.record import Compilation
from models.errors import OnnxError
from models.graphs.file import numbers_of
from models.graphs.nodes import live
from models.graphs.rewriting import Rewriter
from models.network.fields import Array
from models.runtime.heap import trim_heap
from models.runtime.sessions import SessionError, reason

#: The optimiser that makes ONNX Runtime's blocked layout, and the one that puts sums into convolutions.
BLOCKS_CHANNELS, FUSES_SUMS = "NchwcTransformer", "ConvAddActivationFusion"


def by_onnxruntime(
    step: str, level: ort.GraphOptimizationLevel, *without: str
) -> Callable[[Compilation], None]:
    """Return the pass that lets ONNX Runtime rewrite the model.

    ``step``: what the file with its weights is called then. ``level``: which optimisers; ``without``: those
    of them that do nothing.
    """

    def run(work: Compilation) -> None:
        source, result = (work.folder / f"{name}.onnx" for name in (work.step, step))
        # With floats between quantised activations ONNX Runtime would quantise weights again.
        but = ";".join([QUANTISES_WEIGHTS] * bool(work.dequantised) + [*without])
        work.model = optimise_model(work.model, source, result, level, work.path, but)
        work.step = step

    return run


def rewriter(rewriter_of: Callable[[Compilation], Rewriter]) -> Callable[[Compilation], None]:
    """Return the pass that runs the rewriter which is rewriter_of for a compilation."""

    def run(work: Compilation) -> None:
        rewriter_of(work).run()

    return run


def move_weights_out(work: Compilation) -> None:
    """Write large weights to a file."""
    move_weights(work.model, (work.folder / work.step).with_suffix(".data"))


def check_valid(work: Compilation) -> None:
    """Check the model by the ONNX standard."""
    check(work.model, work.folder / "checked.onnx", work.path)
    work.is_valid = True


def infer_types(work: Compilation) -> None:
    """Infer types and check that shapes agree."""
    work.types = types_of(work.model, work.path, work.folder)
    trim_heap()
    _check_shapes(work)


def _check_shapes(work: Compilation) -> None:
    shapes = {tensor.name: tuple(tensor.dims) for tensor in work.model.graph.initializer}
    shapes |= {name: array.shape for name, array in work.values.items()}
    check_agreement(live(work.model), shapes, work.path)


def dequantise_weights(work: Compilation) -> None:
    """Compute what DequantizeLinear makes of constants; only biases may stay integers."""
    model = onnx.ModelProto()
    model.CopyFrom(work.model)
    try:
        reasons = make_floats(model, work.folder)
    except SessionError as exc:
        raise OnnxError(f"{work.path}: ONNX Runtime refuses it: {reason(exc)}") from exc
    if reasons:
        work.model, work.dequantised = model, reasons


def find_dequantised(work: Compilation) -> None:
    """Note whether DequantizeLinear reads constants; those of 4 bits have 8 then."""
    work.has_integers = find_integers(work.model, work.folder)


def correct_pools(work: Compilation) -> None:
    """Infer types until no pool has another output than is computed, and check that shapes agree."""
    while True:
        work.types = types_of(work.model, work.path, work.folder)
        if not settle_pool(work.model, work.values):
            break
    _check_shapes(work)


def choose_layout(work: Compilation) -> None:
    """Lay images out in blocks of channels where convolutions compute them."""
    layout = Layout(work.model, work.values, work.target.block, work.folder)
    layout.run()
    _note_types(work, layout.types)


def softmaxes_along_rows(work: Compilation) -> None:
    """Let each softmax be along the last axis."""
    along = AlongRows(work.model, work.values)
    along.run()
    _note_types(work, along.types)


def _note_types(work: Compilation, types: Mapping[str, Array]) -> None:
    """Note the values that a pass added, and forget those that it took away."""
    values, graph = {**work.values, **types}, work.model.graph
    names = [port.name for port in (*graph.input, *graph.output)]
    names += [name for node in graph.node for name in node.output]
    remaining = {name: values[name] for name in names if name in values}
    work.types = replace(work.types, placed=remaining)


def take_tensors_out(work: Compilation) -> None:
    """Take the constants without a dtype out of the model."""
    work.tensors = take_tensors(work.model, work.folder)


def read_graph(work: Compilation) -> None:
    """Read the model as a graph that has no pieces yet; the message goes."""
    model = work.model
    held = (tensor for tensor in model.graph.initializer if has_dtype(tensor))
    used = {domain for node in model.graph.node for domain in domains(node)} | {""}
    graph = Graph(
        nodes=tuple(live(model)),
        values=work.types.placed,
        constants={tensor.name: numbers_of(tensor, work.folder) for tensor in held},
        inputs=tuple(value.name for value in model.graph.input),
        outputs=tuple(value.name for value in model.graph.output),
        opsets=tuple(item for item in model.opset_import if item.domain in used),
        loose=work.types.loose,
        tensors=work.tensors,
        ir_version=model.ir_version,
        dequantised=work.dequantised,
    )
    work.divided, work.model = CutGraph(graph), onnx.ModelProto()
    total = sum(graph.weight_bytes(node) for node in graph.nodes)
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
