"""Models that take turns in one budget, without Ray around them."""

import asyncio
import importlib.util
import random
from bisect import bisect_left
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import pytest

import layerstream
from models.compiler import compile_onnx
from models.default import FOLDER
from tests.deploy.test_deploy import DEPLOY
from tests.server.conftest import classifier

IMAGE = np.random.default_rng(7).random((1, 3, 16, 16), np.float32)
NAMES = ("a", "b", "c", "d")


@pytest.fixture(scope="module")
def packs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("packs")
    for seed, name in enumerate(NAMES):
        onnx.save(classifier(name, seed), folder / f"{name}.onnx")
        compile_onnx(folder / f"{name}.onnx", folder / name)
    return {name: folder / name for name in NAMES}


@pytest.fixture(scope="module")
def module() -> Any:
    """What lies beside Ray's application; it is in no package."""
    spec = importlib.util.spec_from_file_location("shelf", DEPLOY / "ray/shelf.py")
    assert spec is not None
    assert spec.loader is not None
    found = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(found)
    return found


def least(module: Any, packs: dict[str, Path], fit: int) -> int:
    """About the least memory in which so many of ``packs`` fit, in bytes."""

    def fits(number: int) -> int:
        try:
            shelf = module.Shelf(number << 18, packs)
        except layerstream.RefusedError:
            return 0
        shelf.close()
        return len(shelf.names)

    return bisect_left(range(8 << 2), fit, key=fits) << 18


@pytest.fixture(scope="module")
def room(module: Any, packs: dict[str, Path]) -> int:
    return least(module, packs, 2)


@pytest.fixture
def shelf(module: Any, packs: dict[str, Path], room: int) -> Iterator[Any]:
    """Of four models, in which two fit."""
    found = module.Shelf(room, packs)
    yield found
    found.close()


def right(packs: dict[str, Path], name: str) -> Any:
    session = ort.InferenceSession(packs[name].with_suffix(".onnx"))
    return session.run(None, {"image": IMAGE})[0]


async def test_the_least_recently_used_go(shelf: Any, packs: dict[str, Path]) -> None:
    assert shelf.names == ("b", "a")  # those that are named first, the first of them goes last
    used = ["c", "a", "d"]
    for name in used:
        async with shelf.model(name) as model:
            found = (await model.infer(IMAGE))["logits"]
        np.testing.assert_allclose(found, right(packs, name), rtol=1e-4, atol=1e-6)
        assert shelf.names[-1] == name
    assert shelf.names == ("a", "d")
    with pytest.raises(KeyError):
        async with shelf.model("e"):
            pass


async def test_all_get_their_turn_under_load(shelf: Any, packs: dict[str, Path]) -> None:
    answers = {name: right(packs, name) for name in NAMES}

    async def ask(number: int) -> None:
        chosen = random.Random(number)
        for _ in range(4):
            name = chosen.choice(NAMES)
            async with shelf.model(name) as model:
                found = (await model.infer(IMAGE))["logits"]
            np.testing.assert_allclose(found, answers[name], rtol=1e-4, atol=1e-6)

    asking = [asyncio.create_task(ask(number)) for number in range(4)]
    await asyncio.sleep(0.02)
    asking[0].cancel()  # also in the middle of an exchange
    done = await asyncio.gather(*asking, return_exceptions=True)
    assert done[1:] == [None] * 3


async def test_a_model_that_fits_nowhere_costs_the_others_one_turn(
    module: Any, packs: dict[str, Path], tmp_path: Path
) -> None:
    compile_onnx(FOLDER / "cifar10.onnx", tmp_path / "large")
    two = {"a": packs["a"], "large": tmp_path / "large"}
    shelf = module.Shelf(least(module, two, 1), two)
    try:
        with pytest.raises(layerstream.RefusedError, match="large"):
            async with shelf.model("large"):
                pass
        async with shelf.model("a"):
            with pytest.raises(layerstream.RefusedError):  # at once, though "a" is used
                async with shelf.model("large"):
                    pass
    finally:
        shelf.close()


def test_a_start_says_what_fits_nowhere(module: Any, packs: dict[str, Path]) -> None:
    with pytest.raises(layerstream.RefusedError, match="budget"):
        module.Shelf("64KiB", packs)
