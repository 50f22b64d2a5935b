"""Samples keep the largest of each kind, and end with the process."""

import itertools

from benchmarks.machine.sampling import MemorySample, Sampler, figures, growth, peaks
from pipeline.peers.cgroup import Usage

SAMPLES = [
    MemorySample(0.0, Usage(total=10, anonymous=2, file=7)),
    MemorySample(0.1, Usage(total=40, anonymous=30, file=9)),
    MemorySample(0.2, Usage(total=35, anonymous=5, file=28)),
]


def test_peaks_are_of_each_kind_at_its_own_time() -> None:
    assert peaks(SAMPLES) == Usage(total=40, anonymous=30, file=28)
    assert peaks([]) == Usage(0, 0, 0)


def test_the_total_is_the_kernels_where_it_says_one() -> None:
    told = figures(44, SAMPLES)
    assert (told["cgroup_peak_bytes"], told["sampled_total_peak_bytes"]) == (44, 40)
    assert (told["anonymous_peak_bytes"], told["file_peak_bytes"]) == (30, 28)
    assert figures(0, SAMPLES)["cgroup_peak_bytes"] == 40


def test_sampling_ends_when_the_process_is_gone() -> None:
    looks = itertools.count(1)

    def look() -> Usage:
        seen = next(looks)
        if seen > 3:
            raise ProcessLookupError
        return Usage(seen, seen, 0)

    sampler = Sampler(look, seconds=0)
    with sampler:
        sampler.wait()
    assert [sample.usage.total for sample in sampler.samples] == [1, 2, 3]
    times = [sample.seconds for sample in sampler.samples]
    assert times == sorted(times)


def test_growth_is_of_the_last_minute_over_the_second() -> None:
    """Requests come and go; ten bytes a minute stay."""
    samples = [
        MemorySample(float(second), Usage(0, 1000 + second // 60 * 10 + 500 * (second % 4 == 0), 0))
        for second in range(30, 640)
    ]
    assert growth(samples, began=0.0, ended=600.0) == 1090 / 1010 - 1
    assert growth(samples, began=30.0, ended=200.0) is None
    assert growth([], began=0.0, ended=600.0) is None
