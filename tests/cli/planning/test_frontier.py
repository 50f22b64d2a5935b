"""The table of ``plan --frontier``."""

import pytest

from cli.planning.frontier import print_frontier


@pytest.mark.parametrize(("delays", "bars"), [((0.0,), (1,)), ((10.0, 5.0), (40, 20))])
def test_bars_are_as_long_as_delays(
    capsys: pytest.CaptureFixture[str], delays: tuple[float, ...], bars: tuple[int, ...]
) -> None:
    row = {"total_bytes": 1024, "weight_bytes": 0, "arena_bytes": 1024, "regions": []}
    print_frontier("tiny", [row | {"delay_ms": delay, "estimated": False} for delay in delays])
    lines = [line for line in capsys.readouterr().out.splitlines() if "#" in line]
    assert tuple(line.count("#") for line in lines) == bars
