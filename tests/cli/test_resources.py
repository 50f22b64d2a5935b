"""``plan --resources``: what a container asks for."""

import re

from tests.deploy.test_deploy import MIB
from tests.server.support import BAD, Cli, Packs


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
