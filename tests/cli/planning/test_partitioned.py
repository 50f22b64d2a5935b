"""Workers of ``plan``: of packs that are there, and nothing else."""

import pytest
import typer

from cli.planning.partitioned import check_models, workers_by_model
from tests.server.support import BAD, Cli, Packs


@pytest.mark.parametrize("text", ["2", "a=2", "a=2,3"])
def test_workers_are_of_all_packs_or_of_some(text: str) -> None:
    check_models(workers_by_model(text, [], False), ["a", "b"])


def test_workers_of_no_pack_are_refused(cli: Cli, packs: Packs) -> None:
    with pytest.raises(typer.BadParameter) as caught:
        check_models({500 * "x": 2}, ["a", "b"])
    assert len(caught.value.message) < 120
    result = cli("plan", packs.repository / "tiny", "--budget", "9MiB", "--workers", "nosuch=2")
    assert result.code == BAD
    assert "'nosuch' is none of the packs: tiny" in result.err
