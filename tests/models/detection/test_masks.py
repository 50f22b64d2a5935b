"""Masks of boxes against a sum in NumPy, a cell at a time."""

import json
import math

import numpy as np
from hypothesis import example, given
from hypothesis import strategies as st
from numpy.typing import NDArray

from models.detection.boxes import BoxLimits, find_boxes
from models.detection.masks import BoxMasks
from models.detection.recipe import Detection, head_fault
from models.images.placement import Size
from models.images.preprocess import Preprocess
from models.records import read_record
from tests.examples import over

CHANNELS, ROWS, COLUMNS = 8, 16, 24
#: Of an input of 96 x 64 pixels.
NET = 96, 64


def drawn(*shape: int) -> NDArray[np.float32]:
    return np.random.default_rng([5, *shape]).normal(size=shape).astype(np.float32)


PROTOTYPES = drawn(CHANNELS, ROWS, COLUMNS)


def value(sums: NDArray[np.float64], x: float, y: float) -> float:
    """The number at a point of a grid whose cells have their centres at halves; outside as at the edge."""
    x, y = min(max(x - 0.5, 0), COLUMNS - 1), min(max(y - 0.5, 0), ROWS - 1)
    column, row = min(int(x), COLUMNS - 2), min(int(y), ROWS - 2)
    (a, b), (c, d) = sums[row : row + 2, column : column + 2]
    right, down = x - column, y - row
    return float((a * (1 - right) + b * right) * (1 - down) + (c * (1 - right) + d * right) * down)


def expected(factors: NDArray[np.float32], box: tuple[float, ...]) -> list[list[float]]:
    """Sums at the cells of a grid over ``box``, in parts of the input."""
    sums = np.tensordot(factors.astype(np.float64), PROTOTYPES.astype(np.float64), 1)
    left, right = (min(max(edge, 0), 1) * COLUMNS for edge in box[::2])
    top, bottom = (min(max(edge, 0), 1) * ROWS for edge in box[1::2])
    width, height = max(math.ceil(right - left), 1), max(math.ceil(bottom - top), 1)
    return [
        [
            value(
                sums,
                left + (column + 0.5) * (right - left) / width,
                top + (row + 0.5) * (bottom - top) / height,
            )
            for column in range(width)
        ]
        for row in range(height)
    ]


EDGES = st.tuples(*[st.floats(-0.25, 1.25)] * 2).map(sorted)


@given(across=EDGES, down=EDGES, seed=st.integers(0, 99))
def test_cells_are_those_of_the_sum(across: list[float], down: list[float], seed: int) -> None:
    factors = np.random.default_rng(seed).normal(size=(1, CHANNELS)).astype(np.float32)
    box = across[0], down[0], across[1], down[1]
    edges = np.array([box])
    mask = BoxMasks(PROTOTYPES, factors, edges, edges, NET).mask(0)
    sums = np.array(expected(factors[0], box))
    assert sums.shape == (mask.height, mask.width) == mask.cells().shape
    is_clear = np.abs(sums) > 1e-4
    assert (mask.cells() == (sums > 0))[is_clear].all()
    assert sum(mask.runs) == mask.width * mask.height
    assert all(length > 0 for length in mask.runs[1:])


@given(
    across=EDGES,
    down=EDGES,
    seed=st.integers(0, 99),
    size=st.sampled_from([NET, (48, 48), (191, 70)]),
)
@example(across=[0.5, 0.5], down=[0.0, 1.0], seed=0, size=NET)
@example(across=[0.0, 1.0], down=[1.0, 1.25], seed=0, size=NET)
def test_a_box_has_an_object_where_a_pixel_of_the_input_is_one(
    across: list[float], down: list[float], seed: int, size: Size
) -> None:
    """Ultralytics' process_mask: prototypes at the size of the input, cut by crop_mask."""
    draw = np.random.default_rng(seed)
    factors = draw.normal(size=(1, CHANNELS)).astype(np.float32)
    prototypes = PROTOTYPES - np.float32(draw.uniform(0, 2)) * np.sign(factors[0])[:, None, None]
    sums = np.tensordot(factors[0].astype(np.float64), prototypes.astype(np.float64), 1)
    columns = [x for x in range(size[0]) if across[0] * size[0] <= x < across[1] * size[0]]
    rows = [y for y in range(size[1]) if down[0] * size[1] <= y < down[1] * size[1]]
    values = [
        value(sums, (x + 0.5) * COLUMNS / size[0], (y + 0.5) * ROWS / size[1])
        for y in rows
        for x in columns
    ]
    highest = max(values, default=-1.0)
    edges = np.array([[across[0], down[0], across[1], down[1]]])
    has_object = BoxMasks(prototypes, factors, edges.clip(0.4, 0.5), edges, size).has_object(0)
    assert has_object == (highest > 0) or abs(highest) < 1e-4


@over("nonsense", [np.nan, np.inf, -np.inf, 3e38])
def test_nonsense_has_a_mask_all_the_same(nonsense: float) -> None:
    for prototypes, factors in (
        (np.full_like(PROTOTYPES, nonsense), drawn(1, CHANNELS)),
        (PROTOTYPES, np.full((1, CHANNELS), nonsense, np.float32)),
    ):
        edges = np.array([[0.1, 0.1, 0.9, 0.9]])
        mask = BoxMasks(prototypes, factors, edges, edges, NET).mask(0)
        assert sum(mask.runs) == mask.width * mask.height


@over("kind", ["yolov8", "yolov10"])
def test_a_box_has_the_mask_of_its_row(kind: str) -> None:
    boxes = np.array([[24, 40, 32, 24], [60, 32, 40, 16.0]])
    factors = drawn(2, CHANNELS)
    scores = np.array([[0.5], [0.9]])
    rows = np.concatenate([boxes, scores, factors], axis=1)
    if kind == "yolov10":
        corners = [boxes[:, :2] - boxes[:, 2:] / 2, boxes[:, :2] + boxes[:, 2:] / 2]
        rows = np.concatenate([*corners, scores, np.zeros((2, 1)), factors], axis=1)
    output = (rows if kind == "yolov10" else rows.T)[None].astype(np.float32)
    outputs = {"a": np.ascontiguousarray(output), "b": PROTOTYPES[None]}
    masks = {"output": "b", "channels": CHANNELS}
    head = {"kind": kind, "output": "a", "classes": 1, "masks": masks}
    recipe = read_record(Detection, {"heads": [head]})
    forms = {name: ("float32", array.shape) for name, array in outputs.items()}
    assert head_fault(recipe, forms) is None
    letterbox = Preprocess(size=NET, resize="letterbox")
    detections = find_boxes(outputs, recipe, letterbox, (192, 64), BoxLimits(clip=False))
    for box, row in zip(detections, (1, 0), strict=True):
        x, y, w, h = boxes[row]
        edges = (x - w / 2) / 96, (y - h / 2) / 64, (x + w / 2) / 96, (y + h / 2) / 64
        assert box.mask is not None
        sums = np.array(expected(factors[row], edges))
        assert (box.mask.cells() == (sums > 0))[np.abs(sums) > 1e-4].all()
        document = json.loads(json.dumps(box.as_dict()))["mask"]
        assert document == {"width": sums.shape[1], "height": sums.shape[0], "runs": box.mask.runs}
    clipped = find_boxes(outputs, recipe, letterbox, (192, 64))[1]
    # The photograph ends there, and so does the mask.
    np.testing.assert_allclose(clipped.edges, (16, 24, 80, 64))
    assert clipped.mask is not None
    assert clipped.mask.height == 5


def test_a_box_without_an_object_is_not_listed() -> None:
    """The best box has factors for which no pixel of it is the object."""
    boxes = np.array([[24, 40, 32, 24], [60, 32, 40, 16], [30, 30, 9, 9.0]])
    factors = np.abs(drawn(3, CHANNELS)) * [[1], [-1], [1]]
    rows = np.concatenate([boxes, [[0.5], [0.9], [0.4]], factors], axis=1)
    outputs = {
        "a": np.ascontiguousarray(rows.T[None].astype(np.float32)),
        "b": np.abs(PROTOTYPES[None]),
    }
    masks = {"output": "b", "channels": CHANNELS}
    head = {"kind": "yolov8", "output": "a", "classes": 1, "masks": masks}
    recipe = read_record(Detection, {"heads": [head]})
    letterbox = Preprocess(size=NET, resize="letterbox")
    detections = find_boxes(outputs, recipe, letterbox, NET)
    assert [round(box.score, 3) for box in detections] == [0.5, 0.4]


@over(
    "shape, dtype",
    [((1, 9, 16, 24), "float32"), ((8, 16, 24), "float32"), ((1, 8, 16, 24), "float16")],
)
def test_prototypes_of_another_form_are_refused(shape: tuple[int, ...], dtype: str) -> None:
    masks = {"output": "b", "channels": CHANNELS}
    head = {"kind": "yolov8", "output": "a", "classes": 1, "masks": masks}
    recipe = read_record(Detection, {"heads": [head]})
    fault = head_fault(recipe, {"a": ("float32", (1, 13, 40)), "b": (dtype, shape)})
    assert "masks need float32[1, 8, rows, columns]" in str(fault)
    missing = head_fault(recipe, {"a": ("float32", (1, 13, 40))})
    assert "output 'b': no such output" in str(missing)
