"""Shares of calls by address: pure counting, no server."""

from contextlib import ExitStack

import pytest

from server.errors import BusyError
from server.grpc.shares import Shares


def taken(shares: Shares, address: str, stack: ExitStack) -> int:
    """How many more calls ``address`` can have; they are held."""
    count = 0
    try:
        while True:
            stack.enter_context(shares.call(address))
            count += 1
    except BusyError:
        return count


@pytest.mark.parametrize(("per_address", "expected"), [(None, [4, 2, 1, 1]), (3, [3, 3, 3, 3])])
def test_there_is_a_place_for_who_has_none(per_address: int | None, expected: list[int]) -> None:
    shares = Shares(8, per_address)
    for _ in range(2):  # what was held is free again
        with ExitStack() as stack:
            found = [taken(shares, f"10.0.0.{host}", stack) for host in range(4)]
        assert found == expected


def test_a_network_of_ipv6_is_one_address() -> None:
    shares = Shares(8, 2)
    with ExitStack() as stack:
        assert taken(shares, "2001:db8::1", stack) == 2
        assert taken(shares, "2001:db8::2", stack) == 0
        assert taken(shares, "2001:db8:1::1", stack) == 2
