"""Other work on the machine while a profile is measured is counted, and said."""

from pathlib import Path

import pytest

from pipeline.measuring.profiling import ProcessorTimes, busy_seconds, others_share
from pipeline.profiles.profile_file import FILE, disturbance

STAT = "cpu  100 20 30 5000 700 1 2 3 40 5\ncpu0 1 2 3 4 5 6 7 8 9 10\nintr 1\n"


def test_what_processors_do_is_read() -> None:
    """All but idle and waiting for disks; guests are in user already."""
    assert busy_seconds(STAT, 100) == pytest.approx(1.56)
    for text in ("", "cpu 1 2 3", "intr 1 2 3 4 5 6 7 8 9", "cpu a b c d e f g h"):
        with pytest.raises(ValueError, match=r"processors|literal|unpack"):
            busy_seconds(text, 100)


@pytest.mark.parametrize(
    ("after", "share"),
    [
        (ProcessorTimes(10.0, 15.0, 15.0), 0.0),  # all of it ours
        (ProcessorTimes(10.0, 15.0, 10.0), 0.25),
        (ProcessorTimes(10.0, 20.0, 0.0), 1.0),
        (ProcessorTimes(10.0, 9.9, 10.0), 0.0),  # ticks are coarse
        (ProcessorTimes(0.0, 0.0, 0.0), 0.0),
        (None, 0.0),
    ],
)
def test_the_part_that_others_took(after: ProcessorTimes | None, share: float) -> None:
    assert others_share(ProcessorTimes(0.0, 0.0, 0.0), after, 2) == share


def test_a_pack_tells_how_its_profile_was_measured(tmp_path: Path) -> None:
    said = []
    for text in ('{"others": 0.34, "reads": []}', '{"others": 0.1}', '{"date": ""}', "not JSON"):
        (tmp_path / FILE).write_text(text)
        said.append(disturbance(tmp_path))
    assert "34%" in said[0]
    assert said[1:] == ["", "", ""]
    assert disturbance(tmp_path / "none") == ""
