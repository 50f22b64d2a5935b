"""Settings of scheduling: times and numbers by model, and what contradicts itself."""

from pathlib import Path
from typing import Any

import pytest

from server.scheduling.sweeps import HIGHEST, LOWEST, NORMAL, level
from server.settings.per_model import of_model
from server.settings.settings import SettingsError, load_settings

GIVEN: dict[str, Any] = {"repository": Path("models"), "budget": 64 << 20}


@pytest.mark.parametrize(
    ("given", "expected"), [(None, None), ("0.2", 0.2), ("m=1.5,2", 1.5), ({"m": 3}, 3.0)]
)
def test_deadlines_of_models(given: object, expected: float | None) -> None:
    assert of_model(load_settings(GIVEN | {"deadline": given}).deadline, "m", None) == expected


@pytest.mark.parametrize(
    ("given", "words"),
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


@pytest.mark.parametrize(
    ("number", "expected"), [(0, NORMAL), (1, HIGHEST), (2, NORMAL), (3, LOWEST), (99, LOWEST)]
)
def test_priorities_as_clients_number_them(number: int, expected: int) -> None:
    assert level(number) == expected
