"""Operators on elements as exporters write them become few steps; what is not known is left alone."""

import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import onnx.parser

from models.compiler import compile_onnx
from models.compiler.analysis.alias import Aliases
from models.compiler.analysis.pieces import CutPiece, Slice
from models.compiler.cutting.partition import CutGraph
from models.compiler.cutting.row_nodes import RowNode
from models.compiler.writing.describe_programs import ProgramDescriber
from models.graphs.text import from_text
from models.network.fields import Array
from models.network.windows import SAME
from models.packs.pack import open_pack
from models.packs.records.pieces import ElementProgram, ElementStep, Elementwise
from tests.examples import over

_SHAPE = (1, 4, 3, 5)
_NUMBERS: dict[str, float | tuple[float, ...]] = {
    "pair": (1.0, 2.0, 3.0, 4.0, 5.0),
    "half": 0.5,
    "one": 1.0,
    "three": 3.0,
    "six": 6.0,
    "zero": 0.0,
    "sixth": 1 / 6,
    "root": math.sqrt(2),
    "scale": math.sqrt(0.5),
    "quick": 1.702,
    "infinite": math.inf,
}

# Nodes that make y of x (and z), which of the values in between are read elsewhere, and the steps.
CASES = {
    "mish": ("s = Softplus(x) t = Tanh(s) y = Mul(x, t)", "", ["mish 1"]),
    "mish, backwards": ("s = Softplus(x) t = Tanh(s) y = Mul(t, x)", "", ["mish 1"]),
    "mish by logarithm": (
        "e = Exp(x) f = Add(one, e) s = Log(f) t = Tanh(s) y = Mul(x, t)",
        "",
        ["mish 1"],
    ),
    "mish as the compiler says it": (
        "s = Sigmoid(x) t = Mul(s, s) h = HardSigmoid<alpha=0.5, beta=0.5>(t) b = Div(x, h)"
        "y = Sub(x, b)",
        "",
        ["mish -1"],
    ),
    "mish whose tanh is read elsewhere": (
        "s = Softplus(x) t = Tanh(s) y = Mul(x, t)",
        "t",
        ["softplus", "tanh", "multiply"],
    ),
    "silu": ("s = Sigmoid(x) y = Mul(x, s)", "", ["silu 1"]),
    "silu with a factor": ("a = Mul(x, quick) s = Sigmoid(a) y = Mul(s, x)", "", ["silu 1.702"]),
    "silu, and its sigmoid": ("s = Sigmoid(x) y = Mul(x, s)", "s", ["sigmoid", "multiply"]),
    "a product with the sigmoid of something else": (
        "s = Sigmoid(z) y = Mul(x, s)",
        "",
        ["sigmoid", "multiply"],
    ),
    "silu and a sum before and after": (
        "a = Add(x, z) s = Sigmoid(a) b = Mul(a, s) y = Add(z, b)",
        "",
        ["add", "silu 1", "add"],
    ),
    "two in a row": (
        "s = Sigmoid(x) a = Mul(x, s) t = Sigmoid(a) y = Mul(a, t)",
        "",
        ["silu 1", "silu 1"],
    ),
    "hard swish": (
        "a = Add(x, three) b = Clip(a, zero, six) e = Mul(x, b) y = Div(e, six)",
        "",
        ["hard_swish"],
    ),
    "hard swish, divided first": (
        "a = Add(three, x) b = Clip(a, zero, six) e = Div(b, six) y = Mul(x, e)",
        "",
        ["hard_swish"],
    ),
    "hard swish by hard sigmoid": (
        "a = HardSigmoid<alpha=0.16666667, beta=0.5>(x) y = Mul(a, x)",
        "",
        ["hard_swish"],
    ),
    "another hard sigmoid": (
        "a = HardSigmoid(x) y = Mul(a, x)",
        "",
        ["hard_sigmoid 0.2 0.5", "multiply"],
    ),
    "gelu": (
        "a = Div(x, root) e = Erf(a) g = Add(e, one) b = Mul(x, g) y = Mul(b, half)",
        "",
        ["gelu"],
    ),
    "gelu, halved first": (
        "h = Mul(x, half) a = Div(x, root) e = Erf(a) g = Add(one, e) y = Mul(h, g)",
        "",
        ["gelu"],
    ),
    "another function of erf": (
        "a = Div(x, six) e = Erf(a) g = Add(e, one) b = Mul(x, g) y = Mul(b, half)",
        "",
        ["divide 6", "erf", "add 1", "multiply", "multiply 0.5"],
    ),
    "bounds": ("a = Clip(x, zero, six) y = Relu(a)", "", ["clip 0 6", "relu"]),
    "one bound": ("a = Clip(x, , six) y = Clip(a, zero)", "", ["clip None 6", "clip 0 None"]),
    "a number before": (
        "a = Sub(x, three) y = Mul(half, a)",
        "",
        ["add -3", "multiply 0.5"],
    ),
    "a number less x": ("a = Neg(x) y = Sub(three, a)", "", None),
    "one after the other": (
        "a = Neg(x) b = LeakyRelu<alpha=0.1>(a) e = Tanh(b) f = HardSwish(e) g = Mish(f) y = Gelu(g)",
        "",
        ["negative", "leaky_relu 0.1", "tanh", "hard_swish", "mish 1", "gelu"],
    ),
    "gelu by tanh": ('a = Gelu<approximate="tanh">(x) y = Neg(a)', "", ["gelu_tanh", "negative"]),
    "arithmetic that few have": ("a = Max(x, z) y = Pow(a, half)", "", ["larger", "power 0.5"]),
    "modulo": ("a = Mod<fmod=1>(x, z) y = Mod<fmod=1>(a, half)", "", ["modulo", "modulo 0.5"]),
    "modulo of whole numbers": ("a = Neg(x) y = Mod(a, half)", "", None),
    "alone": ("y = Sigmoid(x)", "", None),
    "alone, of a number": ("y = Add(x, half)", "", None),
    "alone, but taken apart": ("y = HardSwish(x)", "", ["hard_swish"]),
    "a constant of several numbers": ("a = Neg(x) y = Mul(a, pair)", "", None),
    "a number that no file has": ("a = Neg(x) y = Mul(a, infinite)", "", None),
    "three operands": ("a = Neg(x) y = Sum(a, x, z)", "", None),
    "what is no operator on elements": ("s = Sigmoid(x) y = Softmax(s)", "", None),
    "results of two shapes": ("a = Neg(x) c = Neg(v) d = Neg(c) y = Add(a, half)", "d", None),
    "a factor of each channel": ("c = Neg(v) y = Mul(x, c)", "", ["negative", "multiply"]),
}


def parts_of(nodes: str, kept: str, rows: bool = False) -> CutGraph:
    """Return ``nodes`` as one piece; ``rows``: each is an operator on rows, too."""
    head = '<ir_version: 9, opset_import: ["" : 22]> m (float[n] x, float[n] z, float[n] v) => (float[n] y)'
    graph = from_text(f"{head} {{ {nodes} }}")
    own = graph.nodes
    of_channel = ("v", "c", "d")
    names = {"x", "z", "v", *(name for node in own for name in node.made)}
    shapes = {name: (1, 4, 1, 1) if name in of_channel else _SHAPE for name in names}
    constants = {name: np.array(number, np.float32) for name, number in _NUMBERS.items()}
    values = {name: Array(dtype="float32", shape=shape) for name, shape in shapes.items()}
    outputs = ("y", *kept.split())
    graph = replace(graph, values=values, dynamic={}, constants=constants, outputs=outputs)
    read = dict.fromkeys(name for node in own for name in node.reads)
    results = [name for node in own for name in node.made]
    piece = CutPiece(
        0,
        len(own),
        {name: Slice(name, shapes[name]) for name in read if name in ("x", "z", "v")},
        {name: Slice(name, shapes[name]) for name in results},
        (),
    )
    parts = CutGraph(graph, Aliases({}, frozenset()), [piece], {b"": piece}, [0])
    if rows:
        for index, node in enumerate(own):
            inputs = tuple((name, SAME) for name in dict.fromkeys(node.reads) if name in names)
            parts.rows.nodes.append(RowNode(index, inputs, node.made, (node,)))
            parts.row_graphs.append(0)
    return parts


def described(step: ElementStep) -> str:
    numbers = (number if number is None else f"{number:.4g}" for number in step.numbers)
    return " ".join([step.kind, *map(str, numbers)])


@over("name", CASES)
def test_steps(name: str) -> None:
    nodes, kept, expected = CASES[name]
    parts = parts_of(nodes, kept)
    (piece,) = parts.pieces
    programs = ProgramDescriber(parts)
    found = programs.piece(piece)
    if expected is None:
        assert found is None
        assert programs.programs == ()
        return
    assert found is not None
    (program,) = programs.programs
    assert [described(step) for step in program.steps] == expected
    outputs = [*piece.outputs]
    assert {outputs[at] for at in found.makes} == {"y", *kept.split()}
    assert len(program.results) == len(found.makes)


def test_places() -> None:
    parts = parts_of("s = Sigmoid(z) a = Mul(x, s) y = Add(a, z)", "s")
    programs = ProgramDescriber(parts)
    (piece,) = parts.pieces
    assert [*piece.inputs] == ["z", "x"]
    assert programs.piece(piece) == Elementwise(program=0, reads=(0, 1), makes=(0, 2))
    steps = [ElementStep(kind="sigmoid", reads=(0,)), ElementStep(kind="multiply", reads=(1, 2))]
    steps += [ElementStep(kind="add", reads=(3, 0))]
    assert programs.programs == (ElementProgram(n_inputs=2, steps=tuple(steps), results=(2, 4)),)


def test_zero_and_minus_zero_are_two_numbers() -> None:
    """x - 0 is x + -0, which leaves a zero its sign."""
    parts = parts_of("a = Add(x, zero) y = Sub(a, zero)", "")
    programs = ProgramDescriber(parts)
    programs.piece(parts.pieces[0])
    (program,) = programs.programs
    assert [str(step.numbers) for step in program.steps] == ["(0.0,)", "(-0.0,)"]
    parts = parts_of("a = Add(x, zero) b = Tanh(a) e = Sub(b, zero) y = Tanh(e)", "", rows=True)
    programs = ProgramDescriber(parts)
    found = [programs.row_operator(row) for row in parts.rows.nodes]
    assert found[0] != found[2]


def on_rows(nodes: str, kept: str = "") -> dict[str, list[str] | None]:
    """Return what the row operator that makes each value has to do."""
    parts = parts_of(nodes, kept, rows=True)
    programs = ProgramDescriber(parts)
    found: dict[str, list[str] | None] = {}
    for row in parts.rows.nodes:
        item, inputs = programs.row_operator(row), [name for name, _ in row.inputs]
        found[row.outputs[0]] = None
        if item is not None:
            program = programs.programs[item.program]
            read = [inputs[at] for at in item.reads]
            done = [f"{step.kind} {' '.join(read)}" for step in program.steps]
            copied = [f"copy {read[value]}" for value in program.results if value < len(read)]
            found[row.outputs[0]] = done + copied
    return found


def test_what_reads_two_values_of_a_step_hands_its_result_on() -> None:
    """GELU as x / 2 * (1 + erf): its last operator reads two values, and one of them is the result."""
    nodes = "h = Mul(x, half) e = Mul(x, scale) f = Erf(e) g = Add(f, one) y = Mul(h, g)"
    # What is read last of e and h makes it, and the two between have nothing to do or hand it on.
    assert on_rows(nodes) == {
        "h": [],
        "e": ["gelu x"],
        "f": ["copy e"],
        "g": ["copy f"],
        "y": ["copy g"],
    }


def test_an_operator_on_rows_does_its_own_step() -> None:
    nodes = "a = Add(x, z) s = Sigmoid(a) b = Mul(a, s) y = Sub(b, z)"
    assert on_rows(nodes) == {
        "a": ["add x z"],
        "s": [],
        "b": ["silu a"],
        "y": ["subtract b z"],
    }


def test_where_some_operators_are_not_on_rows_there_is_no_program() -> None:
    parts = parts_of("s = Sigmoid(x) t = Mul(x, s) y = Add(t, z)", "", rows=True)
    parts.row_graphs[1] = None
    programs = ProgramDescriber(parts)
    assert programs.piece(parts.pieces[0]) is None
    assert programs.row_operator(parts.rows.nodes[0]) is None


def test_rows_of_one_operator_have_none() -> None:
    assert on_rows("y = Sigmoid(x)") == {"y": None}


def test_a_pack_has_each_program_once(tmp_path: Path) -> None:
    """Chains in slices, the last of another size, and those of another layer, are one program."""
    nodes = "s = Sigmoid(x) a = Mul(x, s) t = Sigmoid(a) y = Mul(a, t)"
    head = (
        '<ir_version: 9, opset_import: ["" : 17]> m (float[1,64,99,99] x) => (float[1,64,99,99] y)'
    )
    onnx.save(onnx.parser.parse_model(f"{head} {{ {nodes} }}"), tmp_path / "m.onnx")
    manifest = open_pack(compile_onnx(tmp_path / "m.onnx", tmp_path / "m")).manifest
    assert len(manifest.pieces) > 1
    (item,) = {piece.elementwise for piece in manifest.pieces}
    assert item == Elementwise(program=0, reads=(0,), makes=(0,))
    assert [described(step) for step in manifest.programs[0].steps] == ["silu 1", "silu 1"]
    assert len(set(manifest.programs)) == len(manifest.programs)
