"""What reading all weights costs the kernels, whatever the pipeline: the least streaming can cost.

Sweeps of ``pre`` take turns: alone, and beside one thread that reads the weights file once, past the page
cache, into one buffer. Nothing waits for anything; what differs is cores, memory and bus shared.

Run as ``python -m benchmarks.read_cost PACK... [--iterations 20]``; prints JSON.
"""

import argparse
import json
import threading
import time
from contextlib import closing
from pathlib import Path
from statistics import median
from typing import Any

from loader.buffers import Buffer
from loader.cores import hasten
from loader.pool.pool import ReadPool
from loader.readers.files import open_reader
from models.packs.pack import Pack, open_pack
from models.runtime.sessions import claim_process, wait_until_quiet
from pipeline.devices.cpu import CpuDevice
from pipeline.execution.engine import Engine
from pipeline.execution.given import Arrays
from pipeline.execution.opened import opened
from pipeline.measuring.sweeps import random_inputs
from pipeline.planning.make import make_plan
from pipeline.planning.streaming import READ_BYTES
from pipeline.program.program import Program
from pipeline.schedule.architectures import ARCHITECTURES


def read_all(pack: Pack, buffer: Buffer, cpu: list[float]) -> None:
    """Read the weights once, ``READ_BYTES`` at a time; append the CPU seconds that took."""
    hasten()
    began = time.thread_time()
    with closing(open_reader(pack.weights_path)) as reader:
        end = pack.weights_path.stat().st_size
        for offset in range(0, end, READ_BYTES):
            length = min(READ_BYTES, end - offset)
            reader.read_into(offset, memoryview(buffer.bytes.data)[:length])
    cpu.append(time.thread_time() - began)


def turn(engine: Engine, inputs: Arrays, buffer: Buffer | None, cpu: list[float]) -> float:
    """Sweep once, beside a reader where there is a ``buffer``; return the delay in seconds."""
    reader = None
    if buffer is not None:
        reader = threading.Thread(target=read_all, args=(engine.program.pack, buffer, cpu))
        reader.start()
    delay = engine.run(inputs)[1].delay_seconds
    if reader is not None:
        reader.join()
    engine.settle()
    wait_until_quiet()
    return delay


def measure(pack: Pack, iterations: int) -> dict[str, Any]:
    """Return the medians of one pack."""
    program = Program.as_compiled(pack)
    inputs, cpu = random_inputs(pack.manifest), list[float]()
    alone, beside = list[float](), list[float]()
    plan = make_plan(program, ARCHITECTURES["pre"])
    with (
        closing(ReadPool()) as pool,
        closing(Buffer(READ_BYTES)) as buffer,
        opened(program, plan, CpuDevice(), pool) as engine,
    ):
        turn(engine, inputs, buffer, [])
        for _ in range(iterations):
            alone.append(turn(engine, inputs, None, cpu))
            beside.append(turn(engine, inputs, buffer, cpu))
    return {
        "model": pack.name,
        "alone_ms": 1e3 * median(alone),
        "beside_ms": 1e3 * median(beside),
        "ratio": median(beside) / median(alone),
        "ratio_of_least": min(beside) / min(alone),
        "reader_cpu_ms": 1e3 * median(cpu),
        "read_bytes": pack.weights_path.stat().st_size,
    }


def main() -> None:
    """Measure each pack and print JSON."""
    claim_process()
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("packs", nargs="+", type=Path, metavar="PACK")
    parser.add_argument("--iterations", type=int, default=20)
    arguments = parser.parse_args()
    results = [measure(open_pack(path), arguments.iterations) for path in arguments.packs]
    print(json.dumps(results, indent=2))


if __name__ == "__main__":
    main()
