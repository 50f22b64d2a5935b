"""How many examples hypothesis draws: few by default, many with ``--hypothesis-profile=many``.

A fault that a change brings in shows in a few examples or hardly at all; those that take thousands are
looked for by ``.ci/run``, in the folders that the change touches.
"""

from typing import Any

from hypothesis import settings

FEW, MANY = "few", "many"

# Examples that compile or read files take as long as the machine needs.
settings.register_profile(FEW, deadline=None, max_examples=25)
settings.register_profile(MANY, deadline=None, max_examples=500)


def examples(few: int, many: int, **options: Any) -> settings:
    """Return settings for a test that is worth more or fewer examples than others."""
    wanted = many if settings.get_current_profile_name() == MANY else few
    return settings(max_examples=wanted, **options)
