"""The demonstration says what happened: its table, its picture and its verdict follow from the figures."""

from itertools import pairwise
from xml.etree import ElementTree

import numpy as np
import pytest

from benchmarks.demo.picture import svg
from benchmarks.demo.story import Shown, conclusion, error, faults, table
from benchmarks.machine.sampling import MemorySample
from benchmarks.servers.attempt import Attempt
from benchmarks.servers.contenders import MAPPED, OURS, RESIDENT
from pipeline.peers.cgroup import Usage
from tests.examples import over

LIMIT = 160_000_000
ANSWER = np.array([1.0, -4.0], np.float32)
# What of its width a text has before its x.
ANCHORS = {None: 0.0, "middle": 0.5, "end": 1.0}
# Letters of a wide font, DejaVu Sans, in parts of its size, from above; bold ones are wider.
WIDTHS = {" ijlIJ,.": 0.32, "frt()-": 0.41, "ABCDGHKNOQRUVXZ": 0.79, "+<>&▲": 0.84, "mMwW": 0.99}
OTHERS, BOLD = 0.64, 1.15


def made(
    anonymous: int, file: int, failure: str = "", answers: int = 5, seconds: float = 0.3
) -> Attempt:
    """Return an attempt whose memory rises evenly to ``anonymous`` and ``file`` MB."""
    tenths = [(step, step * anonymous * 10**5, step * file * 10**5) for step in range(11)]
    samples = [
        MemorySample(step / 10, Usage(own + files, own, files)) for step, own, files in tenths
    ]
    peaks = {"cgroup": anonymous + file, "anonymous": anonymous, "file": file}
    figures = {f"{kind}_peak_bytes": size * 10**6 for kind, size in peaks.items()}
    moments = [(index + 1) / 5 for index in range(answers)]
    return Attempt(
        LIMIT, [ANSWER] * answers, [seconds] * answers, moments, failure, figures=figures, samples=samples
    )  # fmt: skip


def width(text: str, size: float, bold: bool) -> float:
    widths = {letter: ems for letters, ems in WIDTHS.items() for letter in letters}
    return sum(widths.get(letter, OTHERS) for letter in text) * size * (BOLD if bold else 1)


def rows(mapped: Attempt, kept: bool = True) -> list[Shown]:
    resident = made(155, 5, "killed", answers=0) if kept else made(1130, 90)
    attempts = {RESIDENT: resident, MAPPED: mapped, OURS: made(113, 46)}
    return [Shown(name, attempt, LIMIT, kept) for name, attempt in attempts.items()]


@pytest.mark.parametrize("kept", [True, False])
def test_every_line_fits_a_terminal_and_keeps_its_numbers(kept: bool) -> None:
    found = rows(made(89, 71, seconds=0.65), kept)
    lines = table(found, 5)
    assert max(map(len, lines)) <= 79
    assert lines[-1].split() == ["Layerstream", "answers", "5", "of", "5", "0.30", "113", "46"]
    assert ("killed" if kept else "needs 1,130 MB") in lines[2]
    assert not any("…" in line or "..." in line for line in lines)


@over(
    "mapped, words",
    [
        (made(89, 71, seconds=0.6), "2.0 times as long"),
        (made(150, 10, "killed", answers=2), "killed, too"),
        (made(89, 71, "too slow", answers=0), "too slow"),
    ],
)
def test_the_sentences_are_those_of_what_happened(mapped: Attempt, words: str) -> None:
    said = " ".join(conclusion(rows(mapped), 575_000_000, made(1130, 700, seconds=0.17)))
    assert words in said
    assert "1,130 MB and 0.17 s" in said


def test_the_claim_fails_where_it_does_not_hold() -> None:
    good = rows(made(89, 71))
    assert faults(good, 1e-6) == []
    assert faults(good, 1e-4) == ["answers differ by 1.0e-04"]
    assert len(faults(good, None)) == 1
    fitting = [Shown(RESIDENT, made(60, 20), LIMIT), *good[1:]]
    assert "shows nothing" in faults(fitting, 0.0)[0]
    killed = [*good[:2], Shown(OURS, made(150, 5, "killed", answers=1), LIMIT)]
    assert "Layerstream killed" in faults(killed, 0.0)[0]
    # Where no limit can be set, ours must stay below it by itself.
    assert faults([*good[:2], Shown(OURS, made(113, 80), LIMIT, kept=False)], 0.0) != []


def test_files_that_stayed_in_memory_are_told() -> None:
    attempt = made(1, 1)
    assert attempt.caveat == ""
    attempt.cached_bytes = 7_000_000
    assert attempt.caveat.startswith("7 MB of files stayed in the page cache")


def test_an_error_is_relative_to_the_answer() -> None:
    ours, reference = made(1, 1), made(1, 1)
    assert error(ours, reference) == 0.0
    reference.answers[3] = ANSWER + np.float32(0.04)
    assert error(ours, reference) == pytest.approx(0.04 / 3.96)
    assert error(ours, made(1, 1, answers=2)) is None
    assert error(made(1, 1, answers=0), reference) is None


def test_the_picture_is_svg_and_marks_each_answer() -> None:
    found = rows(made(89, 71, answers=4))
    root = ElementTree.fromstring(svg(found, "VGG & <more>", {RESIDENT: " (it takes 1,130 MB)"}))
    name = "{http://www.w3.org/2000/svg}"
    texts = [text.text for text in root.iter(f"{name}text")]
    assert "VGG & <more>" in texts
    assert "killed after 1.0 s (it takes 1,130 MB)" in texts
    answers = [path for path in root.iter(f"{name}path") if path.get("fill")]
    assert len(answers) == 4 + 5


def test_words_of_the_picture_do_not_overlap() -> None:
    """Also in a wide font, such as DejaVu Sans, which stands for Helvetica where there is none."""
    notes = {RESIDENT: " (it takes 1,130 MB)"}
    root = ElementTree.fromstring(svg(rows(made(89, 71)), "VGG-19", notes))
    lines: dict[float, list[tuple[float, float]]] = {}
    for text in root.iter("{http://www.w3.org/2000/svg}text"):
        size = float(text.get("font-size", root.get("font-size") or 0))
        long = width(text.text or "", size, text.get("font-weight") == "bold")
        left = float(text.get("x", 0)) - long * ANCHORS[text.get("text-anchor")]
        lines.setdefault(float(text.get("y", 0)), []).append((left, left + long))
    for rect in root.iter("{http://www.w3.org/2000/svg}rect"):  # colours of the legend
        if left := float(rect.get("x", 0)):
            lines[float(rect.get("y", 0)) + 9].append((left, left + float(rect.get("width", 0))))
    ends = [(one[1], other[0]) for line in lines.values() for one, other in pairwise(sorted(line))]
    assert ends
    assert [end for end in ends if end[0] >= end[1]] == []
    assert max(end for line in lines.values() for _, end in line) <= float(root.get("width", 0))
    assert min(start for line in lines.values() for start, _ in line) >= 0
