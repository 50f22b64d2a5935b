"""What kernels allocate beside their tensors is counted: by a formula, or it is measured."""

from collections.abc import Iterator
from pathlib import Path
from typing import get_args

import onnx
import pytest
from onnx.parser import parse_model

from models.compiler import CompileOptions, compile_onnx
from models.compiler.cutting.meter import Meter, MeterError
from models.compiler.cutting.scratch import FORMULAS
from models.errors import CompileError
from models.network.catalogue import OPERATORS, traits_of
from models.packs.pack import Pack, open_pack
from models.packs.records.pieces import Operand, Piece
from models.packs.records.row_parts import unrolled_bytes
from models.runtime.allocations import Tensor
from models.runtime.heap import heap_bytes
from models.runtime.kernels import KERNELS, Scratch
from pipeline.program.program import Program
from pipeline.program.steps import reserved_scratch
from tests.models.compiler.cutting.scratch_cases import FORMULA_CASES, MEASURED_CASES, Case

pytestmark = pytest.mark.skipif(
    heap_bytes() is None, reason="the C library does not count its heap"
)

THREADS = (1, 2, 5)
# Blocks that Python takes meanwhile; what each thread of a pool keeps (models/runtime/sessions.py).
PYTHON_BYTES, THREAD_BYTES = 32 << 10, 52 << 10
# The kernel counts pages of each core, and sums them now and then.
PAGES_BYTES = 1 << 20
#: Of our own families: no piece has them, since the optimiser says them in others; or they are measured.
WITHOUT_FORMULA = {
    "Celu",
    "Dropout",
    "GroupNormalization",
    "HardSwish",
    "Mish",
    "QLinearConv",
    "Swish",
} | {
    "com.microsoft.QLinearSoftmax",
    "table of bytes",
}
BOUNDED = {operator for operator, kernel in KERNELS.items() if kernel.scratch in FORMULAS}
N_QUICK = 8


class KernelMeter(Meter):
    """Measures by what the kernel counts."""

    module = "tests.models.compiler.cutting.kernel_view"


@pytest.fixture(scope="module")
def meter() -> Iterator[Meter]:
    with Meter() as meter:
        yield meter


def compiled(case: Case, folder: Path) -> Pack:
    name = case.operator.replace(".", "_")
    onnx.save(case.model(), folder / f"{name}.onnx")
    return open_pack(
        compile_onnx(folder / f"{name}.onnx", folder / "packs" / name, CompileOptions())
    )


def operators(graph: bytes) -> set[str]:
    nodes = onnx.ModelProto.FromString(graph).graph.node
    return {f"{node.domain}.{node.op_type}" if node.domain else node.op_type for node in nodes}


def counted(piece: Piece, threads: int) -> int:
    return unrolled_bytes(piece.unrolled, threads) if piece.unrolled else piece.scratch_bytes


def peaks(pack: Pack, piece: Piece, meter: Meter) -> list[dict[int, int]]:
    """Return what ``meter`` measures of ``piece`` by the number of threads, for each way through it."""
    outputs = None if piece.resident else tensors(piece.outputs)
    return meter.peaks(pack.graphs[piece.graph], tensors(piece.inputs), outputs, THREADS)


def tensors(operands: tuple[Operand, ...]) -> list[Tensor]:
    return [(operand.dtype, operand.shape) for operand in operands]


def are_counted(pack: Pack, meter: Meter, spare: int = PYTHON_BYTES) -> None:
    for piece in pack.manifest.pieces:
        for measured in peaks(pack, piece, meter):
            for threads, peak in measured.items():
                max_bytes = counted(piece, threads) + spare + THREAD_BYTES * (threads - 1)
                assert peak <= max_bytes, (operators(pack.graphs[piece.graph]), threads, piece)


# Every operator.


def test_every_operator_of_our_families_has_a_formula_or_a_reason() -> None:
    read = {name for name, record in OPERATORS.items() if record.read}
    assert read - BOUNDED == WITHOUT_FORMULA
    assert set(get_args(Scratch)) - FORMULAS.keys() == {"measured"}


def test_every_operator_with_a_formula_has_a_case() -> None:
    cases = {link.operator for case in FORMULA_CASES for link in (case, *case.then)}
    blocked = {operator for operator in BOUNDED if operator.startswith("com.microsoft.nchwc.")}
    rewritten = {"com.microsoft.FusedConv", *blocked}  # of others, as the test of all of them sees
    assert BOUNDED - rewritten <= cases


@pytest.mark.slow
def test_every_formula_holds_for_what_its_kernel_allocates(tmp_path: Path, meter: Meter) -> None:
    visited: set[str] = set()
    for index, case in enumerate(FORMULA_CASES):
        folder = tmp_path / str(index)
        folder.mkdir()
        pack = compiled(case, folder)
        are_counted(pack, meter)
        visited.update(*map(operators, pack.graphs))
    # Of reshapes no kernel runs: they are other names of a tensor.
    assert all(traits_of(operator).reshapes for operator in BOUNDED - visited)


@pytest.mark.parametrize(
    "case", FORMULA_CASES[:: len(FORMULA_CASES) // N_QUICK], ids=lambda case: case.operator
)
def test_a_formula_holds(case: Case, tmp_path: Path, meter: Meter) -> None:
    are_counted(compiled(case, tmp_path), meter)


# Operators without a formula.


@pytest.mark.parametrize(
    "case",
    [
        pytest.param(
            case, id=f"{case.operator}-{index}", marks=pytest.mark.slow if index > N_QUICK else ()
        )
        for index, case in enumerate(MEASURED_CASES)
    ],
)
def test_what_has_no_formula_is_measured(case: Case, tmp_path: Path, meter: Meter) -> None:
    are_counted(compiled(case, tmp_path), meter)


@pytest.mark.slow
def test_the_kernel_counts_no_more_pages(tmp_path: Path) -> None:
    """By another measure than a plan is made of; and a plan counts no more than what was touched."""
    cases = [case for case in MEASURED_CASES if not case.operator.startswith("Resize")]
    with KernelMeter() as kernel:
        for index, case in enumerate(cases):
            folder = tmp_path / str(index)
            folder.mkdir()
            pack = compiled(case, folder)
            are_counted(pack, kernel, PAGES_BYTES)
            for piece in pack.manifest.pieces:
                touched = max(candidate[1] for candidate in peaks(pack, piece, kernel))
                assert counted(piece, 1) <= 1.25 * touched + PAGES_BYTES, case.operator


def test_scores_of_an_attention_are_counted_for_any_number_of_threads(tmp_path: Path) -> None:
    scores = 4 * 512 * 512 * 4
    (attention,) = compiled(MEASURED_CASES[0], tmp_path).manifest.pieces
    assert scores <= attention.scratch_bytes <= 1.1 * scores
    flash = next(case for case in MEASURED_CASES if "MultiHead" in case.operator)
    (piece,) = compiled(flash, tmp_path).manifest.pieces
    assert piece.unrolled is not None
    assert piece.unrolled.thread_bytes > 32 << 10  # each has scores of its own
    assert counted(piece, 16) >= counted(piece, 1) + 15 * piece.unrolled.thread_bytes


def test_heap_is_retained_for_what_is_unrolled_and_not_for_what_was_measured(
    tmp_path: Path,
) -> None:
    (measured,) = Program.as_compiled(compiled(MEASURED_CASES[0], tmp_path)).pieces
    squares = next(case for case in FORMULA_CASES if case.operator == "LRN")
    unrolled = Program.as_compiled(compiled(squares, tmp_path)).pieces
    max_bytes = max(piece.scratch_bytes for piece in unrolled)
    assert 0 < max_bytes < measured.scratch_bytes
    assert reserved_scratch(unrolled, max_bytes + 1) == max_bytes + 1
    assert reserved_scratch([*unrolled, measured], measured.scratch_bytes) == max_bytes


def branches(then_body: str, else_body: str) -> onnx.ModelProto:
    return parse_model(
        f"""<ir_version: 9, opset_import: ["" : 17]> g (float[64,64] x, bool c) => (float[1] y) {{
            y = If(c) <
                then_branch = t () => (float[1] p) {{ {then_body} }},
                else_branch = e () => (float[1] q) {{ {else_body} }}
            >
        }}"""
    )


@pytest.mark.parametrize("first", [True, False])
def test_memory_of_both_branches_is_counted(first: bool, tmp_path: Path) -> None:
    shape = "k = Constant<value = int64[3] {64, 64, 64}>() o = Constant<value = int64[1] {1}>()"
    large = "l = Expand(x, k) s = ReduceMax<keepdims=0>(l) {0} = Reshape(s, o)"
    small = "o = Constant<value = int64[1] {1}>() s = ReduceMax<keepdims=0>(x) {0} = Reshape(s, o)"
    bodies = [f"{shape} {large}", small] if first else [small, f"{shape} {large}"]
    model = branches(bodies[0].replace("{0}", "p"), bodies[1].replace("{0}", "q"))
    onnx.save(model, tmp_path / "m.onnx")
    pack = open_pack(compile_onnx(tmp_path / "m.onnx", tmp_path / "packs" / "m", CompileOptions()))
    (piece,) = pack.manifest.pieces
    assert piece.scratch_bytes >= 64**3 * 4


def test_what_cannot_be_measured_is_refused(tmp_path: Path) -> None:
    class Broken(Meter):
        module = "models.no_such_module"

    onnx.save(MEASURED_CASES[0].model(), tmp_path / "m.onnx")
    with Broken() as broken, pytest.raises(CompileError, match=r"Attention.*No module named"):
        compile_onnx(tmp_path / "m.onnx", tmp_path / "packs" / "m", CompileOptions(meter=broken))


def test_a_graph_that_accepts_no_drawn_inputs_is_refused_or_named(tmp_path: Path) -> None:
    """Without a formula and of known size: refused; what only a run gives its size: named in a warning."""
    static = """<ir_version: 9, opset_import: ["" : 17]> g (float[4,4] x, int64[4,4] i) => (float[4,4] y) {
            k = Constant<value = int64 {7}>()
            j = Add(i, k)
            y = GatherElements(x, j)
        }"""
    dynamic = """<ir_version: 9, opset_import: ["" : 17]> g (float[4,4] x) => (int64[7] y) {
            k = Constant<value = int64[1] {7}>()
            n = NonZero(x)
            y = Reshape(n, k)
        }"""
    onnx.save(parse_model(static), tmp_path / "known.onnx")
    with pytest.raises(CompileError, match="cannot be measured"):
        compile_onnx(tmp_path / "known.onnx", tmp_path / "packs" / "known", CompileOptions())
    messages: list[str] = []
    onnx.save(parse_model(dynamic), tmp_path / "dynamic.onnx")
    options = CompileOptions(warn=messages.append)
    compile_onnx(tmp_path / "dynamic.onnx", tmp_path / "packs" / "dynamic", options)
    assert len([text for text in messages if "not counted" in text]) == 1


def test_a_large_sequence_of_small_tensors_is_counted(tmp_path: Path, meter: Meter) -> None:
    model = parse_model(
        """<ir_version: 9, opset_import: ["" : 17]> g (float[20000,1] x) => (float[20000,1] y) {
            s = SplitToSequence<axis=0>(x)
            y = ConcatFromSequence<axis=0>(s)
        }"""
    )
    (measured,) = meter.peaks(model.SerializeToString(), [("float32", (20000, 1))], None, (1,))
    assert measured[1] > 20000 * 64


def test_a_kernel_that_ends_the_process_is_measured_on_other_inputs(meter: Meter) -> None:
    model = parse_model(
        """<ir_version: 9, opset_import: ["" : 17]> g (int64[64,64] x, int64[64,64] d) => (int64[64,64] y) {
            y = Div(x, d)
        }"""
    )
    tensor = ("int64", (64, 64))
    (measured,) = meter.peaks(model.SerializeToString(), [tensor, tensor], [tensor], (1,))
    assert measured[1] <= PYTHON_BYTES


def test_what_does_not_end_is_refused() -> None:
    model = parse_model(
        """<ir_version: 9, opset_import: ["" : 17]> g (float[1] x) => (float[1] y) {
            yes = Constant<value = bool {1}>()
            y = Loop("", yes, x) <
                body = b (int64 i, bool go, float[1] s) => (bool again, float[1] t) {
                    again = Identity(go)
                    t = Tanh(s)
                }
            >
        }"""
    )
    tensor = ("float32", (1,))
    with Meter(max_seconds=0.0) as meter, pytest.raises(MeterError, match="still runs after 0 s"):
        meter.allocated(model.SerializeToString(), [tensor], None)
