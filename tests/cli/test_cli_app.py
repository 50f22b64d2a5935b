"""``layerstream app``: one table of all ways to give an application memory."""

from pathlib import Path

from models.packs.target import host_target
from tests.examples import over
from tests.papers.applications.drawn import EXAMPLE
from tests.server.support import BAD, Cli, Packs

QUICK = ("--generations", "2", "--population", "8")


def test_the_worked_example(cli: Cli) -> None:
    options = ("--budget", "20kB", "--chromosome", "001110000", *QUICK, "--frontier", "--json")
    document = cli("app", EXAMPLE, *options).document
    rows = {row["way"]: row for row in document["ways"]}
    assert rows["naive"]["memory_bytes"] == 59_658
    assert rows["reuse"]["memory_bytes"] == 32_778
    assert rows["chromosome"]["memory_bytes"] == 19_712
    assert rows["chromosome"]["phases"]["CNN1:l3"] == 32
    assert rows["algorithm-2"]["memory_bytes"] <= 19_712
    assert min(row["memory_bytes"] for row in document["frontier"]) <= 19_712
    assert "ours" not in rows  # layers that are written down cannot be run


def test_fig_3_is_shown(cli: Cli) -> None:
    shown = cli("app", EXAMPLE, "--chromosome", "110000000", *QUICK).out
    assert "[l1] x 5, [l2], [l1 l2] x 27, [l2] x 4" in shown


def test_packs_have_plans_of_ours(cli: Cli, packs: Packs, tmp_path: Path) -> None:
    file = tmp_path / "app.toml"
    models = (f'[[model]]\nname = "{n}"\npack = "{packs.repository / n}"' for n in ("tiny", "pair"))
    file.write_text("\n".join(models))
    document = cli("app", file, *QUICK, "--frontier", "--json").document
    rows = {row["way"]: row for row in document["ways"]}
    ours, streaming = rows["ours"], rows["ours-streaming"]
    assert ours["turns"] == [["tiny", "pair"]]
    plans = ours["plans"].values()
    assert ours["arena_bytes"] == max(plan["arena_bytes"] for plan in plans)
    assert ours["weight_bytes"] == sum(plan["weight_bytes"] for plan in plans)
    assert streaming["memory_bytes"] <= ours["memory_bytes"]
    # What plain convolutions unroll takes more than so small a network saves.
    plain = host_target().block == 1
    assert plain or ours["memory_bytes"] < rows["naive"]["memory_bytes"]
    file.write_text('together = [["tiny", "pair"]]\n' + file.read_text())
    (row,) = (
        row for row in cli("app", file, *QUICK, "--json").document["ways"] if row["way"] == "ours"
    )
    assert row["turns"] == [["tiny"], ["pair"]]
    assert row["arena_bytes"] > ours["arena_bytes"]


def test_what_only_streams_fits_where_nothing_else_does(
    cli: Cli, packs: Packs, tmp_path: Path
) -> None:
    file = tmp_path / "app.toml"
    file.write_text(f'[[model]]\nname = "tiny"\npack = "{packs.repository / "tiny"}"')
    rows = cli("app", file, *QUICK, "--json").document["ways"]
    least = {row["way"]: row["memory_bytes"] for row in rows}
    budget = min(least["ours"], least["algorithm-2"]) - 1
    assert least["ours-streaming"] <= budget
    document = cli("app", file, *QUICK, "--budget", f"{budget}B", "--json").document
    ways = {row["way"] for row in document["ways"]}
    assert "ours-streaming" in ways
    assert not {"ours", "algorithm-2"} & ways
    assert any("no plan reaches at most" in hint for hint in document["hints"])
    refused = cli("app", file, *QUICK, "--budget", f"{least['ours-streaming'] - 1}B")
    assert refused.code == BAD
    assert f"the smallest takes {least['ours-streaming']:,}" in refused.err


@over(
    "options, said",
    [
        (("--chromosome", "0011"), "write 9 genes"),
        (("--chromosome", "00111000x"), "write 9 genes"),
        (("--throughput", "CNN1"), "write MODEL=FPS of CNN1, CNN2"),
        (("--throughput", "CNN3=5"), "write MODEL=FPS of CNN1, CNN2"),
        (("--throughput", "CNN1=nan"), "write a number of frames a second"),
        (
            ("--budget", "9kB", *QUICK),
            "no plan reaches at most 9,000 bytes: the nearest that was found",
        ),
        (("--budget", "many"), "is not a size"),
    ],
)
def test_bad_input(cli: Cli, options: tuple[str, ...], said: str) -> None:
    result = cli("app", EXAMPLE, *options)
    assert result.code == BAD
    assert said in result.err


def test_a_file_that_is_none(cli: Cli, tmp_path: Path) -> None:
    result = cli("app", tmp_path / "none.toml")
    assert result.code == BAD
    assert "none.toml" in result.err


def test_partitions_at_once_are_planned_as_a_pipeline(
    cli: Cli, packs: Packs, tmp_path: Path
) -> None:
    """Where the file leaves them to us, and where it cuts; both buffers of the edge are counted."""
    file = tmp_path / "app.toml"
    model = f'[[model]]\nname = "tiny"\npack = "{packs.repository / "tiny"}"\n'
    file.write_text(model)
    file.write_text(model + "workers = 2\n")
    rows = {row["way"]: row for row in cli("app", file, *QUICK, "--json").document["ways"]}
    for row in (rows["ours"], rows["ours-streaming"]):
        plan = row["plans"]["tiny"]
        arenas = sum(part["arena_bytes"] for part in plan["partitions"])
        assert plan["edge_bytes"] > 0
        assert plan["arena_bytes"] == arenas + plan["edge_bytes"]
        assert len(plan["cuts"]) == 1
    assert rows["ours"]["weight_bytes"] > rows["ours-streaming"]["weight_bytes"]
    first, *_, before, last = (name.removeprefix("tiny:") for name in rows["algorithm-2"]["phases"])
    halves = f'partitions = [["{first}..{before}"], ["{last}"]]\n'
    file.write_text('together = [["tiny"]]\n' + model + halves)
    document = cli("app", file, *QUICK, "--json").document
    (ours,) = (row for row in document["ways"] if row["way"] == "ours")
    assert len(ours["plans"]["tiny"]["partitions"]) == 2
    assert any(f"the nearest place to {last} " in hint for hint in document["hints"])
