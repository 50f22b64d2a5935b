"""How many cases a test has: examples that hypothesis draws, and tables of them.

Few are drawn by default, many with ``--hypothesis-profile=many``.

A fault that a change brings in shows in a few examples or hardly at all; those that take thousands are
looked for by ``.ci/run``, in the folders that the change touches. Both draw the same in every run, so that
a change is judged by what it does; ``--hypothesis-profile=anew`` draws other ones, as the fuzzers do.
"""

import functools
import inspect
from collections.abc import Callable, Iterable, Iterator
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


def over(
    names: str, cases: Iterable[Any], ids: Iterable[str] | None = None
) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Run a test for each of ``cases``, as ``pytest.mark.parametrize`` does, as one test.

    For a table of cases that take a millisecond each: a test of its own costs pytest four. All of them
    run, and those that fail are named. What a fixture gives is the same for all cases.
    """
    arguments = [name.strip() for name in names.split(",")]
    table = [case if len(arguments) > 1 else (case,) for case in cases]
    labels = list(ids) if ids is not None else [repr(case)[:200] for case in table]

    def decorate(test: Callable[..., Any]) -> Callable[..., Any]:
        signature = inspect.signature(test)
        left = [item for name, item in signature.parameters.items() if name not in arguments]

        def rows(failed: list[Exception]) -> Iterator[dict[str, Any]]:
            for label, case in zip(labels, table, strict=True):
                named = dict(zip(arguments, case, strict=True))
                before = len(failed)
                yield named
                if len(failed) > before:
                    failed[-1].add_note(f"with {label}")

        if inspect.iscoroutinefunction(test):

            @functools.wraps(test)
            async def run(**given: Any) -> None:
                failed: list[Exception] = []
                for named in rows(failed):
                    try:
                        await test(**given, **named)
                    except Exception as exc:  # noqa: BLE001 - told at the end
                        failed.append(exc)
                _tell(failed, len(table))

        else:

            @functools.wraps(test)
            def run(**given: Any) -> None:
                failed: list[Exception] = []
                for named in rows(failed):
                    try:
                        test(**given, **named)
                    except Exception as exc:  # noqa: BLE001 - told at the end
                        failed.append(exc)
                _tell(failed, len(table))

        run.__signature__ = signature.replace(parameters=left)  # type: ignore[attr-defined]
        return run

    return decorate


def _tell(failed: list[Exception], cases: int) -> None:
    if len(failed) == 1:
        raise failed[0]
    if failed:
        raise ExceptionGroup(f"{len(failed)} of {cases} cases", failed)
