"""How many connections a process has, by the files that it may have open."""

import resource

import pytest
from hypothesis import given
from hypothesis import strategies as st

from server.transport.limits import allowed_files


@given(
    wanted=st.integers(1, 3000),
    ports=st.integers(1, 4),
    soft=st.integers(200, 2000),
    more=st.one_of(st.integers(0, 20000), st.none()),
)
def test_places_and_those_that_wait_have_a_file_each(
    wanted: int, ports: int, soft: int, more: int | None
) -> None:
    hard = resource.RLIM_INFINITY if more is None else soft + more
    limits = [(soft, hard)]
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(resource, "getrlimit", lambda _: limits[-1])
        patched.setattr(resource, "setrlimit", lambda _, both: limits.append(both))
        total, waiting = allowed_files(wanted, ports)
    assert all(before[1] == hard for before in limits)
    files, _ = limits[-1]
    assert hard == resource.RLIM_INFINITY or files <= hard
    assert 1 <= total <= wanted
    assert waiting > 0
    assert ports * total + waiting < files, "each needs one, and the process has others"
    if total < wanted:
        assert files == hard, "all that it may have are used"
