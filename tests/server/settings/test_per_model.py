"""Settings with a value for each model: workers, lanes, deadlines."""

from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from server.scheduling.sweeps import HIGHEST, LOWEST, NORMAL, level
from server.settings.per_model import of_model
from server.settings.settings import Settings, SettingsError, load_settings
from tests.examples import over

GIVEN: dict[str, Any] = {"repository": Path("models"), "budget": 64 << 20}


@over(
    "given, a, b",
    [
        (None, 1, 1),
        (2, 2, 2),
        ("2", 2, 2),
        ("a=2", 2, 1),
        ("a=2, 3", 2, 3),
        ("x=y=2", 1, 1),
        ({"a": 2}, 2, 1),
    ],
)
def test_numbers_are_of_all_models_or_of_one(given: object, a: int, b: int) -> None:
    settings = Settings.model_validate(GIVEN | ({} if given is None else {"workers": given}))
    assert [of_model(settings.workers, name, 1) for name in "ab"] == [a, b]


@over("given", ["", "a=", "=2", "a=x", "a=2,a=3", "a=0", 0, 65, True, ["a"]])
def test_anything_else_is_refused(given: object) -> None:
    with pytest.raises(ValidationError):
        Settings.model_validate(GIVEN | {"workers": given})


def test_threads_beside_workers_are_refused() -> None:
    with pytest.raises(SettingsError, match=r"workers: .*each computes with one thread"):
        load_settings(GIVEN | {"workers": "a=2", "threads": 2})
    assert Settings.model_validate(GIVEN | {"workers": "a=2", "threads": 1}).threads == 1
    assert Settings.model_validate(GIVEN | {"workers": "1", "threads": 2}).threads == 2


def test_a_file_has_a_number_or_a_table(tmp_path: Path) -> None:
    file = tmp_path / "settings.toml"
    for text, number in (("workers = 2", 2), ("[workers]\na = 2", 2), ('workers = "b=2"', 1)):
        file.write_text(text)
        assert of_model(load_settings(GIVEN, file).workers, "a", 1) == number


@over(
    "value, pins",
    [
        (None, {}),
        ("a", {"a": 0}),
        ("a=64MiB, b", {"a": 64 << 20, "b": 0}),
        ({"a": "64MiB", "b": ""}, {"a": 64 << 20, "b": 0}),
        ({"a": 1 << 20}, {"a": 1 << 20}),
    ],
)
def test_pins_have_sizes_or_none(value: object, pins: dict[str, int]) -> None:
    assert Settings.model_validate(GIVEN | ({} if value is None else {"pin": value})).pin == pins


@over("value", ["a=x", "a=-1MiB", "a=64", "a,a=1MiB", 3, ["a"], {"a": -1}])
def test_other_pins_are_refused(value: object) -> None:
    with pytest.raises(SettingsError, match="pin"):
        load_settings(GIVEN | {"pin": value})


# Settings of scheduling: times and numbers by model, and what contradicts itself.


@over("given, expected", [(None, None), ("0.2", 0.2), ("m=1.5,2", 1.5), ({"m": 3}, 3.0)])
def test_deadlines_of_models(given: object, expected: float | None) -> None:
    assert of_model(load_settings(GIVEN | {"deadline": given}).deadline, "m", None) == expected


@over(
    "given, words",
    [
        ({"lanes": "m=2", "workers": "2"}, "'m' has workers"),
        ({"lanes": "2", "workers": "m=2"}, "'m' has workers"),
        ({"lanes": 2, "preferred_lanes": 4}, r"4 of '\*', whose sweeps carry 2"),
        ({"lanes": "m=2", "preferred_lanes": "m=2,n=2"}, "2 of 'n', whose sweeps carry 1"),
        ({"lanes": 65}, "lanes"),
        ({"lanes": "1.5"}, "write 2"),
        ({"deadline": "m=x"}, "write 0.2"),
        ({"deadline": "0"}, "deadline"),
        ({"lane_delay": "-1"}, "lane-delay"),
        ({"lane_delay": "nan"}, "lane-delay"),
    ],
)
def test_what_cannot_be_is_refused_by_name(given: dict[str, Any], words: str) -> None:
    with pytest.raises(SettingsError, match=words):
        load_settings(GIVEN | given)


@over("number, expected", [(0, NORMAL), (1, HIGHEST), (2, NORMAL), (3, LOWEST), (99, LOWEST)])
def test_priorities_as_clients_number_them(number: int, expected: int) -> None:
    assert level(number) == expected
