"""``layerstream tiles``: predicted, searched for, run."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from models.packs.target import host_target
from tests.examples import over
from tests.pipeline.execution.test_rows import CASES, compiled
from tests.server.support import BAD, Cli, Packs

pytestmark = pytest.mark.skipif(host_target().block == 1, reason="no blocked layout here")

WHOLE = "1x1/NoCut"


@pytest.fixture(scope="module")
def chain(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A chain of three layers whose maps take more than their weights."""
    case = replace(CASES["photograph"], source="1,3,255,257")
    return compiled(case, tmp_path_factory.mktemp("chain")).folder


def rows(cli: Cli, chain: Path, *options: str) -> dict[str, dict[str, Any]]:
    document = cli("tiles", chain, *options, "--json").document
    return {row["configuration"]: row for row in document["rows"]}


def test_without_options_it_shows_what_algorithm_3_tries(cli: Cli, chain: Path) -> None:
    found = rows(cli, chain)
    assert list(found) == [f"{side}x{side}/NoCut" for side in range(1, 6)]
    sizes = [row["predicted_bytes"] for row in found.values()]
    assert sizes[0] == max(sizes)
    assert found[WHOLE]["macs_ratio"] == 1.0
    for row in found.values():
        # The paper's bias; ours is what sessions take.
        assert row["darknet_bytes"] > 31 << 20 > row["predicted_bytes"]
        assert row["predicted_bytes"] == pytest.approx(row["planned_bytes"], rel=0.1)
        assert row["fits"] is None
    shown = cli("tiles", chain).out
    assert "predicted MiB" in shown
    assert WHOLE in shown


def test_one_configuration_is_predicted_and_compared_with_a_limit(cli: Cli, chain: Path) -> None:
    name = "3x4/2/1x1 raster"
    (size,) = (row["predicted_bytes"] for row in rows(cli, chain, "--tiles", name).values())
    for limit, fits in ((size, False), (size + 1, True)):
        row = rows(cli, chain, "--tiles", name, "--limit", f"{limit}B")[name]
        assert (row["fits"], row["macs_ratio"]) == (fits, 1.0)


def test_algorithm_3_takes_the_first_that_fits(cli: Cli, chain: Path) -> None:
    tried = rows(cli, chain)
    limit = tried["3x3/NoCut"]["predicted_bytes"] + 1
    expected = next(name for name, row in tried.items() if row["predicted_bytes"] < limit)
    (found,) = rows(cli, chain, "--search", "paper", "--limit", f"{limit}B").items()
    assert found[0] == expected
    assert found[1]["fits"]
    (least,) = rows(cli, chain, "--search", "paper", "--limit", "1kB").items()
    assert least[0] == "5x5/NoCut"
    assert not least[1]["fits"]


def test_the_wider_search_makes_nothing_again(cli: Cli, chain: Path) -> None:
    whole = rows(cli, chain)[WHOLE]["predicted_bytes"]
    (large,) = rows(cli, chain, "--search", "wide", "--limit", f"{whole + 1}B")
    assert large == WHOLE
    (small,) = rows(cli, chain, "--search", "wide", "--limit", f"{whole * 3 // 4}B").items()
    assert small[0].endswith(" raster")
    assert small[1]["fits"]
    assert small[1]["macs_ratio"] == 1.0
    refused = cli("tiles", chain, "--search", "wide", "--limit", "1kB")
    assert refused.code == BAD
    assert "no configuration takes less than 1,000 bytes" in refused.err


@pytest.mark.parametrize("name", ["2x3/NoCut", "4x4/2/2x2 checkerboard"])
def test_tiles_run_with_the_bits_of_the_whole(cli: Cli, chain: Path, name: str) -> None:
    document = cli("tiles", chain, "--tiles", name, "--run", "--json").document
    ran, (row,) = document["run"], document["rows"]
    assert ran["same_bits"]
    assert min(ran["delay_ms"], ran["whole_delay_ms"]) > 0
    assert 0.3 < ran["measured_bytes"] / row["predicted_bytes"] < 2
    assert "the bits of the whole network" in cli("tiles", chain, "--tiles", name, "--run").out


@over(
    "options, said",
    [
        (("--tiles", "2x2/NoCut", "--search", "wide"), "give --tiles or --search"),
        (("--search", "wide"), "--search finds one for --limit"),
        (("--run",), "--run is of one configuration"),
        (("--tiles", "2x2/9/1x1"), "'9' is no layer between the first and the last"),
        (("--tiles", "2x2/1"), "tilings and cuts take turns"),
        (("--limit", "much"), "is not a size"),
        (("--search", "best", "--limit", "1MB"), "'best' is not one of"),
    ],
)
def test_bad_input(cli: Cli, chain: Path, options: tuple[str, ...], said: str) -> None:
    result = cli("tiles", chain, *options)
    assert result.code == BAD
    assert said in result.err


def test_layers_that_are_no_chain_are_refused_by_name(
    cli: Cli, packs: Packs, tmp_path: Path
) -> None:
    residual = compiled(CASES["residual"], tmp_path).folder
    result = cli("tiles", residual)
    assert result.code == BAD
    assert "does not read the layer before it, and that alone" in result.err
    result = cli("tiles", packs.repository / "none")
    assert result.code == BAD
    assert "no such folder" in result.err
