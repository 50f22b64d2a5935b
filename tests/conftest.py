"""A tiny compiled model: small enough to compile in a moment, cut into many spans and pieces."""

import contextlib
import gc
import os
import shutil
import sys
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import pytest
from hypothesis import settings

from models.compiler import CompileOptions, compile_onnx
from models.compiler.cutting.meter import Meter
from models.compiler.passes.record import Compilation, Pass
from models.compiler.passes.run import Observer, run
from models.compiler.passes.verify import Verifying
from models.packs.pack import Pack, open_pack
from models.progress import Progress
from tests.examples import FEW
from tests.models.nets import CHUNK_BYTES, residual, written

# Tests start many processes; where a machine keeps no bytecode, each would compile all modules again, and
# every worker all tests.
sys.dont_write_bytecode = False
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)

settings.load_profile(FEW)  # --hypothesis-profile comes later and wins

# Plans and manifests are many small objects and few circles: looking for these after every 700 of them
# takes a tenth of the time of all tests.
gc.set_threshold(50_000, 20, 50)


def pytest_collection_finish() -> None:
    """Set aside what importing and collecting made: an engine that opens collects garbage.

    Thousands of tests and a dozen libraries are some 100 ms each time, and no test made any of it.
    """
    gc.collect()
    gc.freeze()


@pytest.hookimpl(trylast=True)
def pytest_runtest_teardown(item: pytest.Item, nextitem: pytest.Item | None) -> None:
    """Set aside what a file of tests imported, cached and made for others, for the same reason."""
    if nextitem is None or nextitem.path != item.path:
        gc.collect()
        gc.freeze()


@pytest.fixture(scope="session", autouse=True)
def _data_stays_in_caches() -> Iterator[None]:
    """Sweeps that are measured find a small cache emptied: no test says how long one takes."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("pipeline.measuring.sweeps.cache_bytes", lambda: 1 << 16)
        yield


@pytest.fixture(scope="session", autouse=True)
def _one_meter() -> Iterator[None]:
    """All compilations share the process that measures pieces: it takes half a second to start."""
    with Meter() as meter, pytest.MonkeyPatch.context() as patch:
        patch.setattr("models.compiler.compile.Meter", lambda: contextlib.nullcontext(meter))
        yield


@pytest.fixture(scope="session", autouse=True)
def _verified_passes() -> Iterator[None]:
    """The rules of networks are checked after each pass of each compilation."""

    def verified(
        work: Compilation,
        passes: Sequence[Pass],
        progress: Progress,
        observers: Iterable[Observer] = (),
    ) -> None:
        run(work, passes, progress, (*observers, Verifying()))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("models.compiler.compile.run", verified)
        yield


@pytest.fixture(scope="session")
def tiny_onnx(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The source of ``tiny_pack``: input "image" [1, 3, 8, 8], output "logits" [1, 10]."""
    return written(residual(), tmp_path_factory.mktemp("source") / "tiny.onnx")


@pytest.fixture(scope="session")
def tiny_pack(tiny_onnx: Path, tmp_path_factory: pytest.TempPathFactory) -> Pack:
    """A pack with layers cut in chunks and a resident span. Shared by all tests: not to be changed."""
    repository = tmp_path_factory.mktemp("repository")
    return open_pack(
        compile_onnx(tiny_onnx, repository / "tiny", CompileOptions(chunk_bytes=CHUNK_BYTES))
    )


@pytest.fixture
def pack_folder(tiny_pack: Pack, tmp_path: Path) -> Path:
    """A copy of ``tiny_pack`` that the test may damage."""
    return Path(shutil.copytree(tiny_pack.folder, tmp_path / "tiny" / "1"))
