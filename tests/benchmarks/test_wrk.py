"""What wrk says, as figures."""

import json

import pytest

from benchmarks.load.wrk import found, post_script
from tests.examples import over

_SAID = """Running 3s test @ http://127.0.0.1:1/v2/models/tiny/infer
  1 threads and 8 connections
  Thread Stats   Avg      Stdev     Max   +/- Stdev
    Latency     1.06ms  169.73us   5.31ms   91.90%
    Req/Sec     7.57k   371.06     8.00k    83.33%
  {answered}, 6.10MB read
{more}Requests/sec:   7531.86
"""


@over(
    "answered, more, statuses, per_second",
    [
        ("22620 requests in 3.00s", "", {"200": 22620}, 7540.0),
        ("90 requests in 500.00ms", "", {"200": 90}, 180.0),
        ("120 requests in 1.00m", "", {"200": 120}, 2.0),
        (
            "30 requests in 1.00s",
            "  Non-2xx or 3xx responses: 10\n",
            {"200": 20, "other": 10},
            20.0,
        ),
        (
            "7 requests in 1.00s",
            "  Socket errors: connect 1, read 2, write 0, timeout 3\n",
            {"200": 7, "ended": 6},
            7.0,
        ),
    ],
)
def test_figures(answered: str, more: str, statuses: dict[str, int], per_second: float) -> None:
    figures = found(_SAID.format(answered=answered, more=more))
    assert (figures["statuses"], figures["per_second"]) == (statuses, per_second)
    assert figures["answers"] == statuses["200"] + statuses.get("other", 0)


def test_what_wrk_does_not_say() -> None:
    with pytest.raises(ValueError, match="unable to connect"):
        found("unable to connect to 127.0.0.1:1 Connection refused")


def test_a_body_of_json_is_posted_as_it_is() -> None:
    body = json.dumps({"data": [[1], [2]], "id": 'a"b'}).encode()
    assert f"[==[{body.decode()}]==]" in post_script(body)
