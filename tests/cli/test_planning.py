"""What ``plan`` does beside plans: deadlines, the frontier, workers."""

import re

import pytest
import typer

from cli.arguments import PARTS
from cli.planning import check_models, deadlines_of, print_frontier, seconds_of, workers_by_model
from tests.deploy.test_deploy import MIB
from tests.examples import over
from tests.server.support import BAD, Cli, Packs


def test_times() -> None:
    assert seconds_of("50ms") == 0.05
    assert seconds_of("1.5s") == 1.5
    assert seconds_of(None) is None


def test_a_deadline_a_model() -> None:
    assert deadlines_of(["a=50ms", "b=1s", "a=50ms"], ["a", "b", "c"]) == {"a": 0.05, "b": 1.0}


@over(
    "texts, said",
    [
        (["a"], "MODEL=50ms"),
        (["a=soon"], "not a time"),
        (["a=0ms"], "not a time"),
        (["x=1ms"], "none of the packs"),
        (["a=1ms", "a=2ms"], "has two"),
        (["a=" + 500 * "9"], "not a time"),
    ],
)
def test_what_is_no_deadline(texts: list[str], said: str) -> None:
    with pytest.raises(typer.BadParameter, match=said) as caught:
        deadlines_of(texts, ["a"])
    assert len(caught.value.message) < 120


@pytest.mark.parametrize(("delays", "bars"), [((0.0,), (1,)), ((10.0, 5.0), (40, 20))])
def test_bars_are_as_long_as_delays(
    capsys: pytest.CaptureFixture[str], delays: tuple[float, ...], bars: tuple[int, ...]
) -> None:
    row = {"total_bytes": 1024, "weight_bytes": 0, "arena_bytes": 1024, "regions": []}
    print_frontier("tiny", [row | {"delay_ms": delay, "estimated": False} for delay in delays])
    lines = [line for line in capsys.readouterr().out.splitlines() if "#" in line]
    assert tuple(line.count("#") for line in lines) == bars


@over("text", ["2", "a=2", "a=2,3"])
def test_workers_are_of_all_packs_or_of_some(text: str) -> None:
    check_models(workers_by_model(text, [], False), ["a", "b"])


def test_workers_of_no_pack_are_refused(cli: Cli, packs: Packs) -> None:
    with pytest.raises(typer.BadParameter) as caught:
        check_models({500 * "x": 2}, ["a", "b"])
    assert len(caught.value.message) < 120
    result = cli("plan", packs.repository / "tiny", "--budget", "9MiB", "--workers", "nosuch=2")
    assert result.code == BAD
    assert "'nosuch' is none of the packs: tiny" in result.err


def test_a_plan_of_workers_lists_its_memory(cli: Cli, packs: Packs) -> None:
    command = ("plan", packs.repository / "tiny", "--budget", "9MiB", "--workers", 2)
    plan = cli(*command, "--json").document["packs"][0]
    assert len(plan["partitions"]) == 2
    assert sum(plan[name] for name in PARTS) == plan["total_bytes"]
    assert "2 partitions, cut before piece" in cli(*command, "--explain").out


# What a container asks for.


def test_what_a_container_asks_for_is_what_its_process_takes(cli: Cli, packs: Packs) -> None:
    command = ("plan", *(packs.repository / name for name in ("tiny", "pair")), "--threads", 1)
    within = (*command, "--budget", "9MiB")
    asked = cli(*within, "--resources").out
    most = cli(*within, "--json").document["memory_bytes"]
    memory = -(-most // MIB)
    assert re.findall(r"memory: (\d+)Mi\n", asked) == [str(memory)] * 2
    assert 'cpu: "1"\n' in asked
    # The server that is told the limit has at least the budget that was planned.
    budget = cli(*command, "--memory", f"{memory}MiB", "--json").document["budget_bytes"]
    assert budget >= 9 * MIB
    with_grpc = cli(*command, "--memory", f"{memory + 12}MiB", "--grpc-port", 8001, "--json")
    assert with_grpc.document["budget_bytes"] == budget
    cli(*command, "--weights", "50%", "--resources").refuses(BAD, "--resources", "--budget")
