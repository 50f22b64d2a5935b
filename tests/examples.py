"""How many examples hypothesis draws: few by default, many with ``--hypothesis-profile=many``.

A fault that a change brings in shows in a few examples or hardly at all; those that take thousands are
looked for by ``.ci/run``, in the folders that the change touches. Both draw the same in every run, so that
a change is judged by what it does; ``--hypothesis-profile=anew`` draws other ones, as the fuzzers do.
"""

from collections.abc import Iterable
from typing import Any

import pytest
from hypothesis import settings

FEW, MANY, ANEW = "few", "many", "anew"

# Examples that compile or read files take as long as the machine needs.
settings.register_profile(FEW, deadline=None, max_examples=10, derandomize=True)
settings.register_profile(MANY, deadline=None, max_examples=500, derandomize=True)
settings.register_profile(ANEW, deadline=None, max_examples=500)


def examples(few: int, many: int, **options: Any) -> settings:
    """Return settings for a test that is worth more or fewer examples than others."""
    wanted = few if settings.get_current_profile_name() == FEW else many
    return settings(max_examples=wanted, **options)


def thinned(cases: Iterable[Any], every: int) -> list[Any]:
    """Return ``cases`` (tuples of parameters, or one each), but for each ``every``-th marked slow.

    For cases that take the same way through the code with other numbers.
    """
    return [
        pytest.param(
            *(case if isinstance(case, tuple) else (case,)),
            marks=pytest.mark.slow if number % every else (),
        )
        for number, case in enumerate(cases)
    ]
