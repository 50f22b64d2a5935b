"""Every pass of the compiler, in the order in which they run, and which of them a target has."""

import functools
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import replace

import onnxruntime as ort

from models.compiler.analysis.limits import check_limits
from models.compiler.cutting.partition import (
    add_alternatives,
    chain,
    cut_pieces,
    load_bottlenecks,
    load_rows,
    share_memory,
    write_over,
)
from models.compiler.cutting.tables import find_tables
from models.compiler.optimising.along_rows import AlongRows
from models.compiler.optimising.as_convolutions import AsConvolutions, TransposedAsConvolutions
from models.compiler.optimising.attention import FindAttention
from models.compiler.optimising.bodies import move_out
from models.compiler.optimising.einsum_products import EinsumProducts
from models.compiler.optimising.exact_sums import ExactSums
from models.compiler.optimising.folded_norms import FoldNorms
from models.compiler.optimising.hidden_groups import HiddenGroups
from models.compiler.optimising.integer_activations import (
    LeaveTypesToZeroPoints,
    LimitIntegers,
    MakeUnsigned,
    MoveBytes,
    WriteScalars,
    WriteZeroPoints,
)
from models.compiler.optimising.layout import Layout
from models.compiler.optimising.model_checks import check_scales
from models.compiler.optimising.normalise import (
    PoolFirst,
    ScaleResizes,
    TakeCropsApart,
    check_ports,
    copy_constant_outputs,
)
from models.compiler.optimising.rewrite import RewriteActivations
from models.compiler.optimising.split_attention import SplitAttention
from models.compiler.passes import steps
from models.compiler.passes.record import Compilation, Pass
from models.compiler.passes.steps import by_function, by_onnxruntime, rewriter
from models.errors import CompileError
from models.packs.target import C, Target

_Level = ort.GraphOptimizationLevel


def _where(holds: Callable[[Compilation], bool], passes: Iterable[Pass]) -> tuple[Pass, ...]:
    """Return ``passes``, which do something only in compilations of which ``holds`` is true."""

    def run(work: Compilation, step: Pass) -> str | None:
        return step.run(work) if holds(work) else None

    return tuple(replace(step, run=functools.partial(run, step=step)) for step in passes)


# Meaning: ONNX operators, until ONNX Runtime optimises them for the target.

_READ = (
    Pass(
        name="move-weights",
        reason="ONNX Runtime maps weights that lie in a file next to the model, so that they are held "
        "once.",
        needs=(),
        level="meaning",
        error="same bits",
        required=True,
        run=steps.move_weights_out,
    ),
    Pass(
        name="open-branches",
        reason="ONNX Runtime infers shapes in both branches of an If; one that is for other lengths would "
        "refuse the fixed ones.",
        needs=("move-weights",),
        level="meaning",
        error="same bits",
        required=True,
        run=steps.open_branches,
    ),
    Pass(
        name="check-standard",
        reason="ONNX Runtime does not check a model by the ONNX standard; the ONNX checker does.",
        needs=("move-weights",),
        level="meaning",
        error="same bits",
        required=True,
        run=steps.check_valid,
    ),
    Pass(
        name="check-scales",
        reason="A scale that is not above zero makes of numbers what cannot be rounded to integers.",
        needs=("move-weights",),
        level="meaning",
        error="same bits",
        required=True,
        run=lambda work: check_scales(work.graph, work.path),
    ),
    Pass(
        name="write-zero-points",
        reason="Where a zero point is left out ONNX Runtime may quantise to another type than the "
        "network's.",
        needs=("check-scales",),
        level="meaning",
        error="same bits",
        required=True,
        run=rewriter(lambda work: WriteZeroPoints(work.graph)),
    ),
    Pass(
        name="rewrite-activations",
        reason="Mish and others have a form that ONNX Runtime computes in a fifth of the time.",
        needs=(),
        level="meaning",
        error="within a bound",
        required=False,
        run=rewriter(lambda work: RewriteActivations(work.graph)),
    ),
    Pass(
        name="fold-norms",
        reason="Batch norms become part of convolutions a layer at a time; ONNX Runtime holds all weights "
        "that it rewrites.",
        needs=("move-weights",),
        level="meaning",
        error="other order of sums",
        required=False,
        run=rewriter(lambda work: FoldNorms(work.graph, work.folder)),
    ),
    Pass(
        name="fold-constants",
        reason="ONNX Runtime computes what is constant, by itself, since it holds all weights that it "
        "rewrites.",
        needs=("check-standard", "write-zero-points", "open-branches"),
        level="meaning",
        error="within a bound",
        required=True,
        run=by_onnxruntime("folded", _Level.ORT_ENABLE_BASIC),
    ),
)

_WRITTEN = (
    Pass(
        name="infer-types",
        reason="ONNX Runtime alone has types and shapes of its own operators, and does not check that "
        "shapes agree, on which memory relies.",
        needs=("fold-constants",),
        level="meaning",
        error="same bits",
        required=True,
        run=steps.infer_types,
    ),
    Pass(
        name="check-limits",
        reason="What a value of a request makes as large as it says no plan can hold.",
        needs=("infer-types",),
        level="meaning",
        error="same bits",
        required=True,
        run=lambda work: check_limits(work.graph, work.path),
    ),
    Pass(
        name="find-attention",
        reason="Attention in operators of its own makes a tensor of scores; one operator makes some at a "
        "time.",
        needs=("infer-types",),
        level="meaning",
        error="within a bound",
        required=False,
        run=rewriter(lambda work: FindAttention(work.graph)),
    ),
    Pass(
        name="einsums-as-products",
        reason="Einsum copies its tensors in memory of its own; a product of matrices does not.",
        needs=("infer-types",),
        level="meaning",
        error="other order of sums",
        required=False,
        run=rewriter(lambda work: EinsumProducts(work.graph)),
    ),
    Pass(
        name="split-attention",
        reason="What is added to scores is as large as they are; of some queries it is made just before it "
        "is needed.",
        needs=("infer-types",),
        level="meaning",
        error="same bits",
        required=False,
        run=rewriter(lambda work: SplitAttention(work.graph)),
    ),
    Pass(
        name="group-hidden",
        reason="Hidden channels between dense layers on tokens, and heads of attention, are made apart: "
        "some at a time are all that live.",
        needs=("infer-types",),
        level="meaning",
        error="other order of sums",
        required=False,
        run=rewriter(lambda work: HiddenGroups(work.graph, work.target.block, work.folder)),
    ),
    Pass(
        name="dense-as-convolutions",
        reason="Output channels of a dense layer on many rows do not lie together; those of a convolution "
        "do, so that it streams in chunks.",
        needs=("infer-types",),
        level="meaning",
        error="other order of sums",
        required=False,
        run=rewriter(lambda work: AsConvolutions(work.graph, work.target.block)),
    ),
    Pass(
        name="transposed-as-convolutions",
        reason="A transposed convolution has no blocked kernel and no rows; convolutions have both.",
        needs=("infer-types",),
        level="meaning",
        error="other order of sums",
        required=False,
        run=rewriter(lambda work: TransposedAsConvolutions(work.graph, work.target.block)),
    ),
    Pass(
        name="write-scalars",
        reason="ONNX Runtime makes a pool of integers of scales that are vectors, and then refuses it.",
        needs=("fold-constants",),
        level="meaning",
        error="same bits",
        required=True,
        run=rewriter(lambda work: WriteScalars(work.graph)),
    ),
    Pass(
        name="leave-types-to-zero-points",
        reason="Where bytes become unsigned only the zero point says so; a type that is written twice "
        "would contradict it.",
        needs=("write-zero-points",),
        level="meaning",
        error="same bits",
        required=True,
        run=rewriter(lambda work: LeaveTypesToZeroPoints(work.graph)),
    ),
)

_INTEGERS = (
    Pass(
        name="find-integers",
        reason="Only networks with constants of integers take the passes from here on; those of 4 bits "
        "get 8, for which ONNX Runtime has more kernels.",
        needs=("fold-constants",),
        level="meaning",
        error="same bits",
        required=True,
        run=steps.find_dequantised,
    ),
    *_where(
        lambda work: work.has_integers,
        (
            Pass(
                name="make-unsigned",
                reason="ONNX Runtime has fast kernels for unsigned activations alone.",
                needs=("find-integers", "leave-types-to-zero-points"),
                level="meaning",
                error="within a bound",
                required=False,
                run=rewriter(lambda work: MakeUnsigned(work.graph)),
            ),
            Pass(
                name="limit-integers",
                reason="A limit in front of a rounding keeps a convolution from being one of integers; "
                "behind it the limit is one of integers.",
                needs=("find-integers",),
                level="meaning",
                error="within a bound",
                required=False,
                run=rewriter(lambda work: LimitIntegers(work.graph)),
            ),
            Pass(
                name="fuse-integers",
                reason="ONNX Runtime makes operators of integers of all that it can, before the rest "
                "becomes floats.",
                needs=("find-integers",),
                level="meaning",
                error="within a bound",
                required=False,
                run=by_onnxruntime("fused", _Level.ORT_ENABLE_EXTENDED),
            ),
            Pass(
                name="dequantise-weights",
                reason="Weights that no kernel reads as integers would become floats in every run, in "
                "memory as large as the layer.",
                needs=("find-integers",),
                level="meaning",
                error="same bits",
                required=True,
                run=steps.dequantise_weights,
            ),
        ),
    ),
)

# Layout: as ONNX Runtime optimised it for the target.

_OPTIMISED = (
    Pass(
        name="optimise-unblocked",
        reason="ONNX Runtime fuses nodes; the layout, and sums in convolutions, are chosen afterwards.",
        needs=("infer-types", "dequantise-weights"),
        level="layout",
        error="within a bound",
        required=True,
        run=by_onnxruntime(
            "optimised", _Level.ORT_ENABLE_ALL, steps.BLOCKS_CHANNELS, steps.FUSES_SUMS
        ),
    ),
    Pass(
        name="optimise-plain",
        reason="ONNX Runtime fuses nodes; without blocks of channels the pack runs on any CPU.",
        needs=("infer-types", "dequantise-weights"),
        level="layout",
        error="within a bound",
        required=True,
        run=by_onnxruntime("optimised", _Level.ORT_ENABLE_ALL, steps.BLOCKS_CHANNELS),
    ),
    Pass(
        name="fold-written",
        reason="ONNX Runtime folds what was written above; all else that it does is for its own kernels.",
        needs=("infer-types", "dequantise-weights"),
        level="layout",
        error="within a bound",
        required=True,
        run=by_onnxruntime("optimised", _Level.ORT_ENABLE_BASIC, steps.BLOCKS_CHANNELS),
    ),
    Pass(
        name="move-weights-of-bodies",
        reason="ONNX Runtime holds a weight inside a body of If or Loop several times while it loads.",
        needs=(),
        level="layout",
        error="same bits",
        required=True,
        run=by_function(move_out),
    ),
    Pass(
        name="copy-constant-outputs",
        reason="An output lies in the arena, a constant does not, so a node copies it there.",
        needs=(),
        level="layout",
        error="same bits",
        required=True,
        run=by_function(copy_constant_outputs),
    ),
    Pass(
        name="split-crops",
        reason="A crop of rows is what is read, and only the crop of columns needs a kernel.",
        needs=(),
        level="layout",
        error="same bits",
        required=False,
        run=rewriter(lambda work: TakeCropsApart(work.graph)),
    ),
    Pass(
        name="pool-first",
        reason="Maxima of bytes in front of what keeps their order leave it a fourth of the work, and "
        "memory.",
        needs=(),
        level="layout",
        error="same bits",
        required=False,
        run=rewriter(lambda work: PoolFirst(work.graph)),
    ),
    Pass(
        name="correct-pools",
        reason="Values have places in memory by the types and shapes that ONNX Runtime gives them; of a "
        "pool with ceil_mode it may count a window that none is computed of.",
        needs=(),
        level="layout",
        error="same bits",
        required=True,
        run=steps.correct_pools,
    ),
    Pass(
        name="scale-resizes",
        reason="A resize by factors makes the same of some rows as of all; one by sizes does not.",
        needs=("correct-pools",),
        level="layout",
        error="same bits",
        required=False,
        run=rewriter(lambda work: ScaleResizes(work.graph)),
    ),
    Pass(
        name="layout",
        reason="Convolutions compute in blocks of channels, which a processor reads as whole vectors; what "
        "treats elements alike stays in blocks between them.",
        needs=("optimise-unblocked", "correct-pools"),
        level="layout",
        error="other order of sums",
        required=False,
        run=rewriter(lambda work: Layout(work.graph, work.target.block, work.folder)),
    ),
    Pass(
        name="softmaxes-along-rows",
        reason="A softmax along another axis than the last exchanges the two in memory that no plan "
        "places.",
        needs=("correct-pools",),
        level="layout",
        error="same bits",
        required=False,
        run=rewriter(lambda work: AlongRows(work.graph)),
    ),
    Pass(
        name="move-bytes",
        reason="Where numbers of bytes are moved and become the same bytes again, bytes are moved: a "
        "quarter of the memory.",
        needs=("correct-pools",),
        level="layout",
        error="same bits",
        required=False,
        run=rewriter(lambda work: MoveBytes(work.graph)),
    ),
    Pass(
        name="exact-sums",
        reason="Sums of products of unsigned and signed bytes saturate on processors without dot products, "
        "those of unsigned ones do not.",
        needs=("correct-pools",),
        level="layout",
        error="same bits",
        required=True,
        run=rewriter(lambda work: ExactSums(work.graph, work.target.exact_weights, work.folder)),
    ),
    Pass(
        name="check-ports",
        reason="The Open Inference Protocol carries inputs and outputs of its own types alone.",
        needs=("correct-pools",),
        level="layout",
        error="same bits",
        required=True,
        run=lambda work: check_ports(work.graph, work.path),
    ),
)

# Pieces: a graph, its order, and what of it runs at once.

_STREAMED = (
    Pass(
        name="keep-live",
        reason="What no output needs would be cut into pieces, too.",
        needs=("correct-pools", "copy-constant-outputs"),
        level="layout",
        error="same bits",
        required=True,
        run=steps.keep_live,
    ),
    Pass(
        name="store-by-row",
        reason="A matrix that lies by output row can be split among chunks.",
        needs=("keep-live",),
        level="pieces",
        error="other order of sums",
        required=False,
        run=steps.store_rows,
    ),
    Pass(
        name="stream-quantised",
        reason="A convolution of integers turns weights that are no constants round in a run, and no "
        "range of bytes is some of its channels; products on windows, and several layers, have neither "
        "fault.",
        needs=("keep-live",),
        level="pieces",
        error="same bits",
        required=False,
        run=steps.stream_layers,
    ),
    Pass(
        name="order-nodes",
        reason="The order of a file is arbitrary; in another one fewer bytes live at once.",
        needs=("keep-live",),
        level="pieces",
        error="same bits",
        required=False,
        run=steps.keep_less,
    ),
    Pass(
        name="add-byte-tables",
        reason="What operators on elements make of a byte is one of 256 results, which a table holds.",
        needs=("keep-live",),
        level="pieces",
        error="same bits",
        required=False,
        run=steps.add_byte_tables,
    ),
)

_DIVIDED = (
    Pass(
        name="find-regions",
        reason="What cannot be streamed runs as one piece that keeps its weights.",
        needs=("keep-live",),
        level="pieces",
        error="same bits",
        required=True,
        run=steps.find_regions,
    ),
    Pass(
        name="group-quantised",
        reason="What lies between the quantised layers of one piece never lies in a plan.",
        needs=("find-regions",),
        level="pieces",
        error="same bits",
        required=False,
        run=steps.group_layers,
    ),
    Pass(
        name="fuse-activations",
        reason="Gelu cannot lie over what it reads: behind a dense layer on tokens, a chunk of that at a "
        "time is all that lies there.",
        needs=("find-regions",),
        level="pieces",
        error="same bits",
        required=False,
        run=steps.fuse_activations,
    ),
    Pass(
        name="fuse-launches",
        reason="A GPU computes an activation and a sum in the kernel of the layer in front of them.",
        needs=("find-regions",),
        level="pieces",
        error="other order of sums",
        required=False,
        run=steps.fuse_launches,
    ),
    Pass(
        name="share-memory",
        reason="Parts of a concatenation, reshaped tensors and sums need no memory of their own.",
        needs=("find-regions",),
        level="pieces",
        error="within a bound",
        required=False,
        run=lambda work: share_memory(work.divided, work.on_cpu),
    ),
    Pass(
        name="find-chains",
        reason="Operators on elements that follow step other run slice by slice, in the cache.",
        needs=("find-regions",),
        level="pieces",
        error="within a bound",
        required=False,
        run=lambda work: chain(work.divided),
    ),
    Pass(
        name="write-over",
        reason="An operator on elements writes over what it reads last.",
        needs=("find-regions",),
        level="pieces",
        error="same bits",
        required=False,
        run=lambda work: write_over(work.divided),
    ),
    Pass(
        name="find-rows",
        reason="Where operators make some rows at a time, no tensor between them lies whole in memory.",
        needs=("find-regions",),
        level="pieces",
        error="within a bound",
        required=False,
        run=steps.run_on_rows,
    ),
    Pass(
        name="find-bottlenecks",
        reason="An inverted bottleneck makes some of its inner channels at a time.",
        needs=("find-rows",),
        level="pieces",
        error="other order of sums",
        required=False,
        run=steps.run_some_channels,
    ),
    Pass(
        name="cut",
        reason="A piece is one launch with the weights of one read; large layers become chunks.",
        needs=("find-regions",),
        level="pieces",
        error="same bits",
        required=True,
        run=lambda work: cut_pieces(work.divided, work.target, work.chunk_bytes, work.measure),
    ),
    Pass(
        name="load-pieces",
        reason="ONNX Runtime says which nodes take their weights only as constants: these become "
        "resident, and the graph is divided again.",
        needs=("cut",),
        level="pieces",
        error="same bits",
        required=True,
        run=steps.load_pieces,
    ),
    Pass(
        name="find-alternatives",
        reason="Chunks in fewer, larger kernels save launches where memory allows, if the bits are the "
        "same.",
        needs=("load-pieces",),
        level="pieces",
        error="same bits",
        required=False,
        run=lambda work: add_alternatives(work.divided, work.target, work.fault),
    ),
    Pass(
        name="load-rows",
        reason="Operators on rows are those that ONNX Runtime loads and that allocate nothing.",
        needs=("load-pieces",),
        level="pieces",
        error="same bits",
        required=True,
        run=lambda work: load_rows(work.divided, work.target, work.fault, work.measure),
    ),
    Pass(
        name="load-bottlenecks",
        reason="Bottlenecks are those that are whole pieces and that ONNX Runtime loads.",
        needs=("load-pieces",),
        level="pieces",
        error="same bits",
        required=True,
        run=lambda work: load_bottlenecks(work.divided, work.fault),
    ),
    Pass(
        name="find-tables",
        reason="Of a large table a request needs a few rows: pages with checksums of their own can be "
        "read alone.",
        needs=("load-pieces",),
        level="pieces",
        error="same bits",
        required=False,
        run=lambda work: find_tables(work.divided),
    ),
)

#: All, in the order in which they run. What is written for ONNX Runtime is written again where weights
#: became floats.
PASSES = (
    *_READ,
    *_WRITTEN,
    *_INTEGERS,
    *_where(lambda work: bool(work.graph.dequantised), _WRITTEN),
    *_OPTIMISED,
    *_STREAMED,
    *_DIVIDED,
)


# Targets: which passes they have.


def listed(passes: Iterable[Pass], but: Collection[str] = ()) -> tuple[Pass, ...]:
    """Return ``passes`` without those called ``but``: a list that can run.

    Raises:
        AssertionError: a pass stands in front of one that it needs, or without it, or is required and
            needs one that is not; two are called alike; ``but`` names none of them.
    """
    chosen = tuple(step for step in passes if step.name not in but)
    before: dict[str, Pass] = {}
    for step in chosen:
        for name in step.needs:
            assert name in before, f"pass {step.name} needs {name} in front of it"
            assert before[name].required or not step.required, f"{step.name} needs {name}"
        first = before.setdefault(step.name, step)
        assert replace(step, run=first.run) == first, f"two passes are called {step.name}"
    unknown = set(but) - {step.name for step in passes}
    assert not unknown, f"no pass is called {unknown}"
    return chosen


_IN_BLOCKS = {"optimise-unblocked", "group-hidden", "layout", "find-bottlenecks"}
_OF_CPUS = {"rewrite-activations", "make-unsigned", "limit-integers", "fuse-integers"} | {
    "find-attention",
    "einsums-as-products",
    "split-attention",
    "softmaxes-along-rows",
    "stream-quantised",
    "order-nodes",
    "add-byte-tables",
    "group-quantised",
    "find-chains",
    "write-over",
    "find-tables",
    "fuse-activations",
}
_OF_PACKS = {
    "find-attention",
    "einsums-as-products",
    "split-attention",
    "dense-as-convolutions",
    "transposed-as-convolutions",
    "softmaxes-along-rows",
} | {
    *("exact-sums", "store-by-row", "stream-quantised", "add-byte-tables"),
    *(step.name for step in _DIVIDED),
}
#: By target: a CPU whose convolutions have blocks of channels, any CPU, a GPU, C (which has no pieces).
TARGETS: Mapping[str, tuple[Pass, ...]] = {
    "blocked": listed(PASSES, {"optimise-plain", "fold-written", "fuse-launches"}),
    "plain": listed(PASSES, {"fold-written", "fuse-launches", *_IN_BLOCKS}),
    "c": listed(PASSES, {"fold-written", *_IN_BLOCKS, *_OF_PACKS}),
    "gpu": listed(PASSES, {"optimise-plain", *_IN_BLOCKS, *_OF_CPUS}),
}


def passes_of(target: Target) -> tuple[Pass, ...]:
    """Return the passes that compile for ``target``."""
    if target.capability is not None:
        return TARGETS["gpu"]
    if target.isa == C:
        return TARGETS["c"]
    return TARGETS["blocked" if target.block > 1 else "plain"]


def without(passes: Sequence[Pass], names: Collection[str]) -> tuple[Pass, ...]:
    """Return ``passes`` without those called ``names``, and without what needs one of them.

    Raises:
        CompileError: there is none of that name, or it is required.
    """
    by_name = {step.name: step for step in passes}
    for name in names:
        if name not in by_name:
            optional = (step.name for step in by_name.values() if not step.required)
            raise CompileError(f"there is no pass {name!r}; not required are {', '.join(optional)}")
        if by_name[name].required:
            raise CompileError(f"pass {name!r} is required: {by_name[name].reason}")
    out = set(names)
    for step in passes:
        if not out.isdisjoint(step.needs):
            out.add(step.name)
    return listed(passes, out)
