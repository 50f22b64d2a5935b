"""How many connections a process has, by the files that it may have open."""

import resource

import pytest
from hypothesis import given
from hypothesis import strategies as st

from server.transport.limits import allowed_files


@given(
    requested=st.integers(1, 3000),
    ports=st.integers(1, 4),
    soft=st.integers(200, 2000),
    more=st.one_of(st.integers(0, 20000), st.none()),
)
def test_all_connections_have_a_file(
    requested: int, ports: int, soft: int, more: int | None
) -> None:
    hard = resource.RLIM_INFINITY if more is None else soft + more
    limits = [(soft, hard)]
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(resource, "getrlimit", lambda _: limits[-1])
        patched.setattr(resource, "setrlimit", lambda _, both: limits.append(both))
        total, waiting = allowed_files(requested, ports)
    assert all(before[1] == hard for before in limits)
    files, _ = limits[-1]
    assert hard == resource.RLIM_INFINITY or files <= hard
    assert 1 <= total <= requested
    assert waiting > 0
    assert ports * total + waiting < files, "each needs one, and the process has others"
    if total < requested:
        assert files == hard, "all that it may have are used"
