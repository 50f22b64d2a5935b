"""What ``layerstream profile`` says of what it measured: for programs, in a table, in sentences."""

from collections.abc import Iterator
from dataclasses import asdict
from typing import Any

from cli.printing.output import print_table, say
from pipeline.profiles.profile import Profile
from pipeline.profiles.profile_file import disturbed_by
from server.settings.sizes import format_size


def figures_of(profile: Profile) -> dict[str, Any]:
    """Return what ``profile --json`` says of the measurement."""
    return {
        "date": profile.date,
        "kernels": len(profile.kernels),
        "spans": len(profile.spans),
        "span_reads_ms": sum(span.median for span in profile.spans) * 1e3,
        "outside_ms": profile.outside.median * 1e3,
        "slowdown": profile.slowdown,
        "others": profile.others,
        "tuning": profile.tuning.model_dump(),
        "reads": [asdict(item) for item in profile.reads],
        "copies": [asdict(item) for item in profile.copies],
    }


def print_profile(name: str, profile: Profile) -> None:
    """Print transfers of the pack ``name`` as a table, and the rest in words."""
    _print_transfers(name, profile)
    for line in _sentences(profile):
        say(line)


def _sentences(profile: Profile) -> Iterator[str]:
    """Yield what was measured beside transfers, in words."""
    spans = sum(span.median for span in profile.spans) * 1e3
    yield f"all weights, read one span after the other ({len(profile.spans)}): {spans:.1f} ms"
    yield f"{len(profile.kernels)} kernels timed; beside reads they take {profile.slowdown:.1%} longer"
    yield f"of a request {profile.outside.median * 1e3:.2f} ms are outside of its sweep"
    found = profile.tuning.model_dump(exclude_defaults=True)
    chosen = [f"{found[name]} ({name.replace('_', ' ')})" for name in found if name != "algorithms"]
    if chosen:
        yield f"fastest here: {', '.join(chosen)}"
    if profile.was_disturbed:
        yield f"warning: {disturbed_by(profile.others)}; run it again when the machine is quiet"


def _print_transfers(name: str, profile: Profile) -> None:
    rows = [
        (
            "read",
            format_size(item.n_bytes),
            str(item.depth),
            item.seconds,
            item.n_bytes * item.depth,
        )
        for item in profile.reads
    ] + [
        ("copy", format_size(item.n_bytes), "1", item.seconds, item.n_bytes)
        for item in profile.copies
    ]
    if not rows:
        return  # no weights, no transfers
    print_table(
        f"{name}: transfers",
        ("what", "size", "in flight", "median ms", "p95 ms", "max ms", "GB/s"),
        (
            (
                what,
                shown,
                depth,
                *(f"{of * 1e3:.3f}" for of in (seconds.median, seconds.p95, seconds.max)),
                f"{n_bytes / seconds.median / 1e9:.2f}",
            )
            for what, shown, depth, seconds, n_bytes in rows
        ),
    )
