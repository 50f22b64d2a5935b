"""How requests share sweeps: the settings first, then the model's config.pbtxt."""

from pathlib import Path
from typing import Any

import pytest

from server.repository.model_config import read_model_config
from server.repository.on_disk import Slot
from server.repository.preparing import batching_of
from server.scheduling.sweeps import ALONE, Batching
from server.settings.lanes import MOST_LANES
from server.settings.settings import load_settings

GIVEN: dict[str, Any] = {"repository": Path("models"), "budget": 64 << 20}
EIGHT = """
    max_batch_size: 8
    dynamic_batching { preferred_batch_size: [2, 4] max_queue_delay_microseconds: 5000 }
"""


@pytest.mark.parametrize(
    ("given", "config", "expected"),
    [
        ({}, "", ALONE),
        ({"lanes": "4"}, "", Batching(4, (4,), 0.0)),
        ({"lanes": "m=4,2"}, "", Batching(4, (4,), 0.0)),
        ({"lanes": "other=4"}, "", ALONE),
        (
            {"lanes": 8, "preferred_lanes": "m=2", "lane_delay": "0.005"},
            "",
            Batching(8, (2,), 0.005),
        ),
        ({}, EIGHT, Batching(8, (2, 4), 0.005)),
        ({}, "max_batch_size: 8 dynamic_batching { }", Batching(8, (8,), 0.0)),
        ({}, "max_batch_size: 1000 dynamic_batching { }", Batching(MOST_LANES, (MOST_LANES,), 0.0)),
        ({}, "max_batch_size: 8", ALONE),
        ({}, "dynamic_batching { }", ALONE),
        ({"lanes": "1"}, EIGHT, Batching(1, (1,), 0.0)),
        ({"workers": "m=2"}, EIGHT, ALONE),
    ],
)
def test_how_requests_share_sweeps(
    tmp_path: Path, given: dict[str, Any], config: str, expected: Batching
) -> None:
    folder = tmp_path / "m"
    folder.mkdir()
    (folder / "config.pbtxt").write_text(config)
    slot = Slot("m", "m", folder / "1", read_model_config(folder), ())
    assert batching_of(load_settings(GIVEN | given), slot) == expected
