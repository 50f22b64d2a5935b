"""The setting ``workers``: a number for all models, or MODEL=NUMBER for some."""

from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from server.settings.settings import Settings, SettingsError, load_settings
from server.settings.workers import workers_of

GIVEN: dict[str, Any] = {"repository": Path("models"), "budget": 64 << 20}


@pytest.mark.parametrize(
    ("given", "a", "b"),
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
    assert (workers_of(settings.workers, "a"), workers_of(settings.workers, "b")) == (a, b)


@pytest.mark.parametrize("given", ["", "a=", "=2", "a=x", "a=2,a=3", "a=0", 0, 65, True, ["a"]])
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
        assert workers_of(load_settings(GIVEN, file).workers, "a") == number
