"""SDF3's XML: graphs come back as they went, and files that are wrong are refused by name."""

import re
import tempfile
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from papers.dataflow.conversion import WindowOverlap, convert
from papers.dataflow.csdf import DataflowError, DataflowGraph
from papers.dataflow.sdf3 import read_sdf3, sdf3_text
from tests.examples import examples, over
from tests.papers.dataflow.cnns import figure_1
from tests.papers.dataflow.graphs import graphs


def read(text: str | bytes, folder: Path) -> DataflowGraph:
    path = folder / "g.xml"
    path.write_bytes(text.encode() if isinstance(text, str) else text)
    return read_sdf3(path)


@over("overlap", WindowOverlap)
def test_figure_1_comes_back(overlap: WindowOverlap, tmp_path: Path) -> None:
    graph = convert(figure_1(), overlap)
    text = sdf3_text(graph)
    assert read(text, tmp_path) == graph
    assert 'rate="384,192,192,256"' in text
    assert sdf3_text(read(text, tmp_path)) == text


_NAMES = st.text(st.characters(exclude_categories=("Cs", "Cc", "Cn", "Co")), min_size=1, max_size=9)


@given(graphs(), st.lists(_NAMES, min_size=20, max_size=20, unique=True))
@examples(15, many=500, deadline=None)
def test_any_graph_comes_back(graph: DataflowGraph, names: list[str]) -> None:
    named = DataflowGraph(
        names[0],
        tuple(replace(actor, name=name) for actor, name in zip(graph.actors, names, strict=False)),
        tuple(
            replace(channel, name=name)
            for channel, name in zip(graph.channels, names, strict=False)
        ),
    )
    with tempfile.TemporaryDirectory() as folder:
        assert read(sdf3_text(named), Path(folder)) == named


def test_what_else_sdf3_says_is_passed_over(tmp_path: Path) -> None:
    text = sdf3_text(convert(figure_1(), WindowOverlap.LOOP))
    short = text.replace(",".join(["32"] * 32), "16*32,16*32").replace("128,128,128,0", "3*128,0")
    short = re.sub(r'time="1(,1)*"', 'time="1"', short)
    more = short.replace("</csdfProperties>", "<graphProperties/></csdfProperties>")
    more = more.replace("<csdf ", "<!-- by hand --><csdf ").replace(
        '<processor type="core"',
        '<processor type="slow"><executionTime time="9"/></processor><processor type="core"',
    )
    assert read(more, tmp_path) == read(text, tmp_path)


_SOUND = sdf3_text(convert(figure_1(), WindowOverlap.LOOP))


@over(
    "old, new, said",
    [
        ("csdf\" version", "sdf\" version", r"line 2: <sdf3>: expected <sdf3 type=\"csdf\">"),
        ("<csdf name", "<other/><csdg name", "no XML: mismatched tag"),
        ("</sdf3>", "", "no XML: no element found"),
        ("<sdf3 ", '<!DOCTYPE x [<!ENTITY a "b">]><sdf3 ', "line 2: a DOCTYPE, expected none"),
        ("<sdf3 ", '<!DOCTYPE x SYSTEM "/etc/passwd"><sdf3 ', "line 2: a DOCTYPE, expected none"),
        ('rate="48"', 'rate="-48"', "<port>: rate: '-48', expected a number of 0 or more"),
        ('rate="48"', 'rate="4.5"', "<port>: rate: '4.5', expected a number"),
        ('rate="48"', 'rate=""', "<port>: no attribute 'rate'"),
        ('rate="48"', 'rate="\u0663"', "expected a number of 0 or more"),
        ('rate="48"', f'rate="{"9" * 5000}"', "expected a number of 0 or more, of up to 15 digits"),
        ('rate="48"', 'rate="999999999*48"', "at most 8,000,000 rates and times"),
        ('time="1,1,1,1"', 'time="1,1"', "<actor>: 2 numbers, expected 4: one for each phase"),
        ("128,128,128,0", "128,128,0", r"<actor>: ports of \[3, 4\] rates, expected as many of each"),
        ('type="in" name="in0"', 'type="inout" name="in0"', "type: 'inout', expected in or out"),
        ('name="in0"', 'name="in7"', "dstPort: 'in0', expected a port of type in of 'n2'"),
        ('srcPort="out4"', 'srcPort="out2"', "expected a port of type out of 'n3'"),
        ('srcPort="out4"', 'srcPort="out3"', "srcPort: 'out3' has a channel already"),
        ('dstActor="n5"', 'dstActor="n9"', "expected a port of type in of 'n9'"),
        ('initialTokens="0"', 'initialTokens="many"', "initialTokens: 'many', expected a number"),
        ('<actor name="n5"', '<actor name="n4"', "a second actor 'n4'"),
        ('<actor name="n5"', "<actor", "<actor>: no attribute 'name'"),
        ('rate="2"', 'rate="0"', "all rates at 'n"),
        ("<csdfProperties>", "<csdfProperties>" + "<a>" * 40 + "</a>" * 40, "32 in each other"),
    ],
)  # fmt: skip
def test_what_is_wrong_is_named(old: str, new: str, said: str, tmp_path: Path) -> None:
    assert old in _SOUND
    with pytest.raises(DataflowError, match=said) as caught:
        read(_SOUND.replace(old, new), tmp_path)
    message = str(caught.value)
    assert message.startswith(f"{tmp_path}/g.xml: ")
    assert len(message) < 400


def test_graphs_that_are_too_large_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("papers.dataflow.sdf3.MOST_CHANNELS", 5)
    with pytest.raises(DataflowError, match="expected at most 5 actors and channels"):
        read(_SOUND, tmp_path)


def test_a_channel_too_few_is_named(tmp_path: Path) -> None:
    lines = [line for line in _SOUND.splitlines() if '<channel name="n4' not in line]
    with pytest.raises(DataflowError, match="<port>: no channel begins or ends here"):
        read("\n".join(lines), tmp_path)


def test_files_that_are_not_there_or_no_text(tmp_path: Path) -> None:
    with pytest.raises(DataflowError, match="No such file"):
        read_sdf3(tmp_path / "g.xml")
    for data in (b"", b"\0" * 100, b"\xff\xfe\x00", b'<?xml version="1.0" encoding="utf-77"?><a/>'):
        with pytest.raises(DataflowError, match="no XML"):
            read(data, tmp_path)
