"""How many cases a test has: examples that hypothesis draws, and tables of them.

Few are drawn by default, many with ``--hypothesis-profile=many``.

A fault that a change brings in shows in a few examples or hardly at all; those that take thousands are
looked for by ``.ci/run``, in the folders that the change touches. Both draw the same in every run, so that
a change is judged by what it does; ``--hypothesis-profile=anew`` draws other ones, as the fuzzers do.
"""

import functools
import inspect
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from hypothesis import settings

FEW, MANY, ANEW = "few", "many", "anew"

# Examples that compile or read files take as long as the machine needs.
settings.register_profile(FEW, deadline=None, max_examples=6, derandomize=True)
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
    rows = [dict(zip(arguments, case, strict=True)) for case in table]
    labelled = [*zip(labels, rows, strict=True)]
    assert labelled, "no cases"

    def decorate(test: Callable[..., Any]) -> Callable[..., Any]:
        signature = inspect.signature(test)
        left = [item for name, item in signature.parameters.items() if name not in arguments]

        def run(**given: Any) -> None:
            with Failures() as failures:
                for label, row in labelled:
                    with failures.of(label):
                        test(**given, **row)

        async def run_async(**given: Any) -> None:
            with Failures() as failures:
                for label, row in labelled:
                    with failures.of(label):
                        await test(**given, **row)

        found = functools.wraps(test)(run_async if inspect.iscoroutinefunction(test) else run)
        found.__signature__ = signature.replace(parameters=left)  # type: ignore[attr-defined]
        return found

    return decorate


class Failures:
    """Those of some cases, told at the end."""

    def __init__(self) -> None:
        self._failed: list[Exception] = []

    @contextmanager
    def of(self, label: str) -> Iterator[None]:
        try:
            yield
        except Exception as exc:  # noqa: BLE001 - told at the end
            exc.add_note(f"with {label}")
            self._failed.append(exc)

    def __enter__(self) -> "Failures":
        return self

    def __exit__(self, *_: object) -> None:
        if len(self._failed) == 1:
            raise self._failed[0]
        if self._failed:
            raise ExceptionGroup(f"{len(self._failed)} cases", self._failed)
