"""Wishes for the models of a service, in any order and at once: tests/fuzz/fleet.py says what holds."""

from collections.abc import Iterator

import pytest
from hypothesis import settings

from tests.examples import FEW
from tests.fuzz.fleet import FleetFuzzer, Plot, Step
from tests.server.repository.imagined import REQUEST_BYTES, Contents

NOW, AT_REST = 0, None


def plot(room: int, *steps: Step, seed: int = 0, policy: str = "evict-lru") -> Plot:
    """Return a sequence where models have ``room`` bytes."""
    return Plot(seed, REQUEST_BYTES + room, "own", policy, False, False, steps)


def written(name: str, least: int, full: int, arena: int = 0) -> Step:
    return Step("write", name, contents=Contents(least, full, arena), pause=NOW)


START = Step("load_all")
# What was wrong once.
SEQUENCES = {
    "who is away comes for one whose files are others now": plot(
        60,
        written("a", 23, 103),
        written("b", 6, 26, 20),
        written("c", 16, 96, 5),
        START,
        Step("load", "c"),
        Step("unload", "b"),
        written("c", 26, 46, 5),
        Step("request", "a", 18),
    ),
    "who is away comes for one that has left service": plot(
        100,
        written("a", 57, 80),
        written("b", 53, 53),
        START,
        Step("fault", "a"),
        Step("request", "b", 5),
    ),
    "a read does not end while a next version is opened": plot(
        60,
        written("a", 46, 66),
        START,
        Step("upload", "d", 10, Contents(10, 10, 0)),
        Step("fail", "open", 15, pause=NOW),
        Step("write", "d", 28, Contents(24, 104, 5), pause=NOW),
        Step("follow"),
        Step("request", "a", 53),
    ),
    "a read does not end while what was is opened again": plot(
        64,
        written("a", 9, 29, 5),
        START,
        Step("fail", "open", 14, pause=NOW),
        Step("fail", "open", 31, pause=NOW),
        Step("upload", "c", 32, Contents(44, 44, 5)),
        Step("load", "c"),
    ),
    "a change that found no room comes when another gives some": plot(
        100,
        written("a", 36, 36, 40),
        written("b", 6, 26),
        START,
        written("b", 26, 46),
        Step("poll"),
        written("a", 60, 80),
        Step("poll"),
        policy="refuse",
    ),
    "another comes while one is closed that nobody used": plot(
        60,
        written("a", 40, 60),
        START,
        Step("idle", "a"),
        Step("upload", "b", 10, Contents(30, 50, 0)),
        Step("request", "a", 3),
        policy="refuse",
    ),
    "who waits for a load finds another, and the model goes again": plot(
        60,
        written("a", 58, 78),
        written("c", 5, 5),
        START,
        Step("upload", "d", 49, Contents(43, 63, 20), pause=4),
        Step("load", "c", 56, pause=1),
        Step("request", "c", 42, pause=NOW),
        Step("follow", "c", 50, pause=2),
        Step("unload", "d", 52),
    ),
    **{
        f"an engine that is not wanted any more cannot be closed, after {turns} turns": plot(
            220,
            written("a", 22, 102),
            written("b", 6, 86, 5),
            START,
            written("a", 51, 51, 5),
            Step("load", "a", pause=turns),
            Step("fail", "close", pause=NOW),
            Step("cancel"),
            Step("load", "a"),
            Step("load", "b"),
            seed=turns,
        )
        for turns in range(30, 35)
    },
    "a load of what is not there ends with the service": Plot(
        *(404, 214, "shared", "evict-lru", False, False),
        steps=(Step("load", "c", pause=2),),
    ),
    "neither what comes nor what was can be opened, and memory is lost": Plot(
        43900257933,
        214,
        "auto",
        "evict-lru",
        True,
        False,
        (
            written("a", 52, 52, 5),
            written("c", 30, 110, 40),
            START,
            Step("upload", "a", 15, Contents(57, 77, 5), pause=37),
            Step("fail", "plan", 24, pause=NOW),
            Step("fault", "b", 35, pause=NOW),
            Step("fail", "open", 59, pause=NOW),
            Step("cancel", "c", 8),
        ),
    ),
    "under pressure a model shares the arena of one that has left service": Plot(
        1051992911914,
        464,
        "shared",
        "refuse",
        False,
        False,
        (
            written("c", 53, 73, 20),
            written("d", 19, 19, 20),
            START,
            Step("fault", "d", 42, pause=NOW),
            Step("press", "c", 20),
        ),
    ),
}


@pytest.fixture
def fuzzer() -> Iterator[FleetFuzzer]:
    fuzzer = FleetFuzzer()
    with fuzzer.silent():
        yield fuzzer


@pytest.mark.parametrize("sequence", SEQUENCES.values(), ids=SEQUENCES)
def test_what_was_wrong_once(fuzzer: FleetFuzzer, sequence: Plot) -> None:
    fuzzer.play(sequence)


def test_models_are_what_the_service_says(fuzzer: FleetFuzzer) -> None:
    sequences = 15 if settings.get_current_profile_name() == FEW else 2_000
    answered = [fuzzer.run(number) for number in range(sequences)]
    assert sequences // 4 < sum(answered) < sequences
