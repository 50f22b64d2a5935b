"""Train patchnet: ``python -m benchmarks.training [--cifar10 FILE] [--bccd FILE]``, both at once.

What is done stays done and what was stopped goes on: results are in ``--folder``.
Needs the extra ``train``.
"""

import argparse
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import torch

from benchmarks.training import ablations, bccd, cifar10
from benchmarks.training.queue import train

_BUILD = Path(__file__).resolve().parents[2] / "build"
#: Networks so small have nothing to divide: each data set has a thread of its own.
_THREADS = 1


def main() -> None:
    """Train what is asked for."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.training", description=__doc__)
    parser.add_argument(
        "--cifar10", type=Path, help="an npz as benchmarks/training/cifar10.py reads it"
    )
    parser.add_argument("--bccd", type=Path, help="a zip of BCCD in the form of Pascal VOC")
    parser.add_argument("--folder", type=Path, default=_BUILD / "training")
    parser.add_argument("--only", default="", help="runs whose names have this in them")
    options = parser.parse_args()
    jobs = [
        (named, read, path)
        for named, read, path in (
            (ablations.cifar10, cifar10.read, options.cifar10),
            (ablations.bccd, bccd.read, options.bccd),
        )
        if path is not None
    ]
    if not jobs:
        parser.error("nothing to train on: --cifar10 or --bccd")

    def work(job: tuple[Any, Any, Path]) -> None:
        torch.set_num_threads(_THREADS)
        named, read, path = job
        runs = [(name, run) for name, run in named() if options.only in name]
        train(runs, read(path), options.folder, lambda text: print(text, flush=True))

    with ThreadPoolExecutor(len(jobs)) as pool:
        list(pool.map(work, jobs))


if __name__ == "__main__":
    main()
