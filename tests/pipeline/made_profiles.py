"""Profiles made of numbers alone, for programs made of numbers alone."""

from pipeline.profiles.machine import Machine
from pipeline.profiles.profile import Profile
from pipeline.profiles.times import CopyTime, Distribution, ReadTime, piece_key, row_keys
from pipeline.program.choice import choose_pieces, chunk_sizes
from pipeline.program.program import Program
from pipeline.program.steps import row_network

MACHINE = Machine(
    cpu="a processor",
    cores=2,
    threads=2,
    isa="x86_64-avx2",
    onnxruntime="1.0",
    kernel="Linux 6",
    device="/dev/disk",
    file_system="ext4",
    reader="direct",
    reader_priority="nice",
    huge_pages=True,
)


def always(seconds: float) -> Distribution:
    """Return a time that never differs."""
    return Distribution(count=1, median=seconds, p95=seconds, max=seconds)


def profile(
    program: Program,
    kernel_seconds: float = 1e-3,
    bytes_a_second: float = 1e9,
    slowdown: float = 0.0,
) -> Profile:
    """Return a profile in which every kernel takes as long, and bytes move at one speed."""
    sizes = (64 << 10, 128 << 10, 8 << 20)
    limits = (0, *chunk_sizes(program))
    kernels = {piece_key(piece) for limit in limits for piece in choose_pieces(program, limit)}
    kernels |= set(row_keys(row_network(program)))
    return Profile(
        manifest="0" * 16,
        machine=MACHINE,
        date="2026-01-01T00:00:00+00:00",
        reads=tuple(
            ReadTime(n_bytes=n_bytes, depth=depth, seconds=always(depth * n_bytes / bytes_a_second))
            for n_bytes in sizes
            for depth in (1, 2, 4)
        ),
        copies=tuple(
            CopyTime(n_bytes=n_bytes, seconds=always(n_bytes / bytes_a_second)) for n_bytes in sizes
        ),
        kernels=dict.fromkeys(kernels, always(kernel_seconds)),
        slowdown=slowdown,
        outside=always(0.0),
    )
