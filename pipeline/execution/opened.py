"""The one way to open an engine: its reader, and closing in the right order."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager

from loader.pool.pool import ReadPool
from loader.readers.files import open_reader
from loader.readers.interface import Reader
from pipeline.devices.base import Device
from pipeline.execution.answering import Answering
from pipeline.execution.engine import Engine
from pipeline.execution.leases import ArenaLease
from pipeline.execution.partitions.pipeline import Pipeline
from pipeline.planning.plan import PartitionedPlan, Plan
from pipeline.planning.validate import validate, validate_edges
from pipeline.program.partitions import Cuts
from pipeline.program.program import Program


@contextmanager
def opened(
    program: Program,
    plan: Plan,
    device: Device,
    pool: ReadPool | None = None,
    reader: Reader | None = None,
    verify: bool = False,
    *,
    lease: Callable[[], ArenaLease] | None = None,
) -> Iterator[Engine]:
    """Yield an open engine that answers at once, and close it and what was made for it.

    ``pool``, ``reader``, ``verify``, ``lease``: as ``open_engine``; without a pool it has its own.

    Raises:
        As ``open_engine``.
    """
    with ExitStack() as stack:
        if pool is None:
            pool = ReadPool()
            stack.callback(pool.close)
        engine = open_engine(program, plan, device, pool, reader, verify, lease=lease, at_once=True)
        stack.callback(engine.close)
        yield engine


def open_answering(
    program: Program,
    plan: Plan,
    device: Device,
    pool: ReadPool,
    reader: Reader | None = None,
    verify: bool = False,
    *,
    lease: Callable[[], ArenaLease] | None = None,
) -> Answering:
    """Return what answers in all shapes that ``plan`` has, as ``open_engine`` does for one.

    Raises:
        As ``open_engine``.
    """
    first = open_engine(program, plan, device, pool, reader, verify, lease=lease)
    if not plan.others:
        return first
    from pipeline.execution.shaped import ShapedEngine  # most models have one shape

    with ExitStack() as failed:
        failed.callback(first.close)
        engines = [first]
        for shape, shape_plan in zip(program.others, plan.others, strict=True):
            validate(shape, shape_plan)
            engine = Engine(shape, shape_plan, device, pool, first.reader, verify, of=first)
            failed.callback(engine.close)
            engine.open()
            engines.append(engine)
        failed.pop_all()
        return ShapedEngine(engines)


def open_pipeline(
    program: Program,
    plan: PartitionedPlan,
    devices: Sequence[Device],
    pool: ReadPool,
    open_weights: Callable[[], Reader] | None = None,
    *,
    verify: bool = False,
    cores: Sequence[int] = (),
) -> Pipeline:
    """Return an open pipeline of ``program``; the caller closes it.

    ``devices``: of each partition. ``open_weights``: opens the weights, once for each; None: their file.
    ``cores``: as Pipeline. On an error nothing stays open.

    Raises:
        As ``open_engine``.
    """
    validate_edges(program, plan)
    with ExitStack() as failed:
        engines = []
        parts = Cuts(program).parts(plan.cuts)
        for part, own, device in zip(parts, plan.partitions, devices, strict=True):
            reader = None if open_weights is None else open_weights()
            engine = open_engine(part, own, device, pool, reader, verify)
            failed.callback(engine.close)
            engines.append(engine)
        pipeline = Pipeline(program, plan, engines, cores)
        failed.pop_all()
        return pipeline


def open_engine(
    program: Program,
    plan: Plan,
    device: Device,
    pool: ReadPool,
    reader: Reader | None = None,
    verify: bool = False,
    *,
    lease: Callable[[], ArenaLease] | None = None,
    at_once: bool = False,
) -> Engine:
    """Return an open engine of ``program``, prepared for ``device``; the caller closes it.

    ``reader``: of the weights, the engine's to close from now on; None: of their file. ``verify``: as
    ``Engine``. ``lease``: makes that of an arena that engines share. ``at_once``: a request is there
    already, so memory is taken from the system while kernels are loaded. On an error nothing stays open.

    Raises:
        InvalidPlanError: ``plan`` cannot run so. ReadError: the weights cannot be opened. LoaderError: a
            resident span cannot be read or is damaged. DeviceError: a piece cannot be loaded, or there is
            no memory. MemoryError: the system has none.
    """
    with ExitStack() as failed:
        if reader is not None:
            failed.callback(reader.close)
        validate(program, plan)
        if reader is None:
            reader = open_reader(program.pack.weights_path)
            failed.callback(reader.close)
        arena = None if lease is None else lease()
        engine = Engine(program, plan, device, pool, reader, verify, lease=arena)
        failed.pop_all()
        failed.callback(engine.close)
        if at_once:
            engine.populate()
        engine.open()
        failed.pop_all()
        return engine
