"""What is measured and estimated of tables whose rows are read: any rows, at what pages cost."""

from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import pytest

from loader.readers.disk import REAL_DISK
from models.compiler import CompileOptions, compile_onnx
from models.packs.pack import Pack, open_pack
from models.packs.records.pieces import PAGE_BYTES
from pipeline.devices.cpu import CpuDevice
from pipeline.measuring.profiling import file_reads, profile_pack
from pipeline.measuring.sweeps import measure_limits, random_inputs
from pipeline.planning.estimates import Estimates, arithmetic
from pipeline.planning.explain import explain
from pipeline.planning.make import make_plan
from pipeline.planning.plan import PlanError
from pipeline.program.prepare import prepare
from pipeline.program.program import Program
from pipeline.schedule.architectures import ARCHITECTURES
from tests.models.compiler.cutting.test_tables import ROWS, WIDTH, drawn, embedding, network

COMPUTED = """computed (int32[1,8] ids) => (float[1,8,256] y) {
    next = Add(ids, one)
    y = Gather(table, next)
}"""


@pytest.fixture(scope="module")
def device() -> Iterator[CpuDevice]:
    with closing(CpuDevice(1)) as device:
        yield device


def packed(model: onnx.ModelProto, folder: Path, options: CompileOptions | None = None) -> Pack:
    onnx.save(model, folder / "embed.onnx")
    return open_pack(compile_onnx(folder / "embed.onnx", folder / "packs" / "embed", options))


@pytest.fixture(scope="module")
def pack(tmp_path_factory: pytest.TempPathFactory) -> Pack:
    return packed(embedding(), tmp_path_factory.mktemp("measured"))


@pytest.fixture(scope="module")
def program(pack: Pack, device: CpuDevice) -> Program:
    return prepare(pack, device)


def test_random_indices_name_any_row(pack: Pack, program: Program) -> None:
    for named in (pack.manifest, program):
        indices = [random_inputs(named, seed)["ids"] for seed in range(8)]
        assert all(array.dtype == np.int64 for array in indices)
        assert 0 <= np.min(indices) < ROWS // 4
        assert 3 * ROWS // 4 < np.max(indices) < ROWS
    assert random_inputs(program, kind="ones")["ids"].tolist() == [[1] * 8]


def test_indices_that_are_computed_stay_small(tmp_path: Path, device: CpuDevice) -> None:
    weights = {"table": drawn(ROWS, WIDTH), "one": np.array(1, np.int32)}
    program = prepare(packed(network(COMPUTED, **weights), tmp_path), device)
    assert program.tables
    assert random_inputs(program)["ids"].max() <= 1
    plan = make_plan(program, ARCHITECTURES["2s"])
    with pytest.raises(PlanError, match=r"no bound: which rows of a table are read 'next' says"):
        measure_limits(program, plan, device, 2)
    preloaded = make_plan(program, ARCHITECTURES["pre"])
    assert measure_limits(program, preloaded, device, 2).runs == 2


def test_a_bound_counts_the_reads_of_rows(program: Program, device: CpuDevice) -> None:
    plan = make_plan(program, ARCHITECTURES["2s"])
    limits = measure_limits(program, plan, device, 3)
    assert limits.bound_seconds(plan) > 0


def test_estimates_count_reads_of_rows(program: Program) -> None:
    plan, preloaded = (make_plan(program, ARCHITECTURES[name]) for name in ("2s", "pre"))
    times = replace(arithmetic(program), read=lambda n_bytes, depth: 1e-3 * depth)
    estimates = Estimates(program, times)
    pages = 8 * (1 + 4 * WIDTH / PAGE_BYTES)
    more = sum(estimates.kernels(plan)) - sum(estimates.kernels(preloaded))
    assert more == pytest.approx(pages * 1e-3)
    lines = explain(plan, estimates)
    assert lines[-1] == (
        "rows of the table of layer 'y', 1.1 MiB, are read as a request needs them, through 64.0 KiB"
    )
    assert not any("table" in line for line in explain(preloaded, estimates))


def test_a_profile_has_the_time_of_pages(
    pack: Pack, device: CpuDevice, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pipeline.measuring.profiling._ANSWERED_SECONDS", 0.0)
    profile = profile_pack(pack, device, 1)
    depths = [item.depth for item in profile.reads if item.n_bytes == PAGE_BYTES]
    assert depths == [1, 2, 4]
    streamed = packed(embedding(), tmp_path, CompileOptions(without=("find-tables",)))
    assert PAGE_BYTES not in {item.n_bytes for item in profile_pack(streamed, device, 1).reads}


def test_pages_come_from_all_of_the_file(pack: Pack) -> None:
    with file_reads(pack, REAL_DISK) as reads:
        seconds = list(reads.pages(2))
    assert len(seconds) == 16
    assert all(0 < page_seconds < 1 for page_seconds in seconds)
