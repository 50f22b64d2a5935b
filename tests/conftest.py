"""A tiny compiled model: small enough to compile in a moment, cut into many spans and pieces."""

import contextlib
import gc
import os
import shutil
import sys
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings

from loader.native.compiling import LibraryError
from loader.native.library import find_reader
from models.compiler import CompileOptions, compile_onnx
from models.compiler.cutting.meter import Meter
from models.compiler.passes.record import Compilation, Pass
from models.compiler.passes.run import Observer, run
from models.compiler.passes.verify import Verifying
from models.packs.pack import Pack, open_pack
from models.progress import Progress
from pipeline.planning import make
from pipeline.planning.plan import Plan
from pipeline.planning.validate import validate
from pipeline.program.program import Program
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


@pytest.fixture(scope="module", params=["C", "Python"])
def reads_by(request: pytest.FixtureRequest) -> Iterator[str]:
    """Have the pools of a module read by C, where it is built, and then by Python; return which."""
    by: str = request.param
    if by == "C" and isinstance(find_reader(), LibraryError):
        pytest.skip(f"no reader in C: {find_reader()}")
    with pytest.MonkeyPatch.context() as patch:
        if by == "Python":
            patch.setattr("loader.pool.pool.find_reader", lambda: LibraryError("not wanted"))
        yield by


@pytest.fixture(scope="session", autouse=True)
def _every_plan_can_run() -> Iterator[None]:
    """Validate each plan that is made, whichever module asks for it."""

    def make_valid(program: Program, *args: Any, **options: Any) -> Plan:
        plan = make.make_plan(program, *args, **options)
        validate(program, plan)
        return plan

    with pytest.MonkeyPatch.context() as patch:
        for module in list(sys.modules.values()):
            if module is not make and getattr(module, "make_plan", None) is make.make_plan:
                patch.setattr(module, "make_plan", make_valid)
        yield


@pytest.fixture(scope="session", autouse=True)
def _data_stays_in_caches() -> Iterator[None]:
    """Sweeps that are measured find a small cache emptied: no test says how long one takes."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("pipeline.measuring.sweeps.cache_bytes", lambda: 1 << 16)
        yield


@pytest.fixture(scope="session", autouse=True)
def _no_curves_of_disks() -> Iterator[None]:
    """Profiles measure the disk, and leave no file in the cache of the user."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("pipeline.profiles.disk_curves.default_file", lambda: None)
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
