"""What goes into a sweep and what comes out: rows as they are made, views, nothing held too long."""

import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import onnx
import pytest
from numpy.typing import NDArray
from PIL import Image

from loader.pool.pool import ReadPool
from loader.readers.fakes import MemoryReader
from models.compiler import CompileOptions, compile_onnx
from models.images.picture_rows import PictureTensor
from models.images.preprocess import Preprocess
from models.packs.pack import Pack, open_pack
from models.zoo.builder import SkeletonBuilder
from pipeline.devices.cpu import CpuDevice
from pipeline.execution.engine import Engine
from pipeline.execution.errors import InputError
from pipeline.execution.given import Arrays, copies
from pipeline.planning.make import make_plan
from pipeline.planning.plan import Choice, Plan
from pipeline.program.lives import taken_by_rows
from pipeline.program.program import Program
from pipeline.program.region_plan import Region, RowCut
from pipeline.program.row_network import RowNetwork
from pipeline.schedule.architectures import ARCHITECTURES
from tests.examples import over
from tests.models.nets import filled

RECIPE = Preprocess(size=(32, 32), mean=(10, 20, 30), std=(40, 50, 60))


@pytest.fixture(scope="module")
def pack(tmp_path_factory: pytest.TempPathFactory) -> Pack:
    folder = tmp_path_factory.mktemp("given")
    b = SkeletonBuilder("given", 32)
    x = b.relu(b.norm(b.conv(b.image, 16, 3, 2)))
    x = b.relu(b.norm(b.conv(x, 32, 3)))
    onnx.save(filled(b.model(b.linear(b.flatten(x), 10)), seed=3), folder / "given.onnx")
    return open_pack(compile_onnx(folder / "given.onnx", folder / "pack", CompileOptions()))


def plans(pack: Pack) -> dict[str, Plan]:
    """A sweep that reads its input whole, and ones whose region takes it by rows."""
    program, auto = Program.as_compiled(pack), ARCHITECTURES["auto"]
    network = RowNetwork(program)
    end = max(n for n in range(1, len(program.pieces)) if network.within(range(n)) is not None)
    found = {"whole": make_plan(program, auto)}
    for rows in (1, 3, 8):
        regions = (Region(0, end, RowCut(rows)),)
        found[f"{rows} rows"] = make_plan(program, auto, choice=Choice(regions=regions))
    return found


@contextmanager
def opened(pack: Pack, plan: Plan) -> Iterator[Engine]:
    pool = ReadPool()
    reader = MemoryReader(pack.weights_path.read_bytes())
    engine = Engine(Program.as_compiled(pack), plan, CpuDevice(), pool, reader)
    try:
        engine.open()
        yield engine
    finally:
        engine.close()
        pool.close()


def picture(seed: int = 0) -> Image.Image:
    noise = np.random.default_rng(seed).integers(0, 256, (50, 40, 3), np.uint8)
    return Image.fromarray(noise)


KINDS = ("whole", "1 rows", "3 rows", "8 rows")


@pytest.mark.parametrize("kind", KINDS)
def test_pictures_and_their_tensors_give_the_same_bits(pack: Pack, kind: str) -> None:
    plan = plans(pack)[kind]
    assert bool(taken_by_rows(Program.as_compiled(pack), plan.steps)) == (kind != "whole")
    with opened(pack, plan) as engine, opened(pack, plans(pack)["whole"]) as other:
        for seed in range(3):
            array = RECIPE.apply(picture(seed))
            expected = engine.run({"image": array})[0]["logits"]
            np.testing.assert_allclose(
                expected, other.run({"image": array})[0]["logits"], rtol=0, atol=1e-5
            )
            found = engine.run({"image": RECIPE.tensor(picture(seed))})[0]["logits"]
            assert found.tobytes() == expected.tobytes()


@over("kind", KINDS)
def test_outputs_are_views_that_cannot_be_written(pack: Pack, kind: str) -> None:
    with opened(pack, plans(pack)[kind]) as engine:
        seen: list[Arrays] = []

        def take(outputs: Arrays) -> dict[str, NDArray[Any]]:
            seen.append(outputs)
            assert not any(array.flags.owndata for array in outputs.values())
            with pytest.raises(ValueError, match="read-only"):
                outputs["logits"][...] = 0
            return copies(outputs)

        taken, statistics = engine.answer({"image": RECIPE.apply(picture())}, take)
        assert statistics.delay_seconds > 0
        assert taken["logits"].tobytes() == seen[0]["logits"].tobytes()


@over("kind", KINDS)
@over("is_array", [True, False])
def test_inputs_are_gone_when_outputs_are_taken(pack: Pack, kind: str, is_array: bool) -> None:
    """A caller that empties its mapping then has freed them: outputs may be copied to where they were."""
    given: Any = RECIPE.apply(picture()) if is_array else RECIPE.tensor(picture())
    inputs = {"image": given}
    held = weakref.ref(given)
    del given

    def take(outputs: Arrays) -> bool:
        assert held() is not None
        inputs.clear()
        return held() is None

    with opened(pack, plans(pack)[kind]) as engine:
        assert engine.answer(inputs, take)[0]


def test_who_fails_to_take_leaves_the_engine_usable(pack: Pack) -> None:
    def take(outputs: Arrays) -> None:
        raise ValueError("not what was hoped for")

    with opened(pack, plans(pack)["3 rows"]) as engine:
        tensor = RECIPE.tensor(picture())
        with pytest.raises(ValueError, match="hoped"):
            engine.answer({"image": tensor}, take)
        first = engine.run({"image": tensor})[0]["logits"]
        assert first.tobytes() == engine.run({"image": tensor})[0]["logits"].tobytes()


def test_tensors_of_pictures_are_checked_like_arrays(pack: Pack) -> None:
    small: PictureTensor = Preprocess(size=(31, 32)).tensor(picture())
    with (
        opened(pack, plans(pack)["3 rows"]) as engine,
        pytest.raises(InputError, match=r"float32\[1, 3, 32, 31\]"),
    ):
        engine.run({"image": small})


def test_a_plan_counts_no_tensors_of_requests(pack: Pack) -> None:
    """They are counted by the part that holds them, such as the service."""
    assert {plan.io_bytes for plan in plans(pack).values()} == {0}
