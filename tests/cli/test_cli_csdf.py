"""``layerstream csdf``: packs to SDF3's files, and files to their smallest buffers."""

from pathlib import Path

import pytest

from models.compiler import CompileOptions, compile_onnx
from models.packs.target import host_target
from papers.dataflow.conversion import WindowOverlap, convert
from papers.dataflow.sdf3 import sdf3_text
from tests.models.nets import CHUNK_BYTES, residual, written
from tests.papers.dataflow.cnns import figure_1
from tests.server.support import BAD, Cli


@pytest.fixture
def paper(tmp_path: Path) -> Path:
    path = tmp_path / "paper.xml"
    path.write_text(sdf3_text(convert(figure_1())), "utf-8")
    return path


def test_a_file_is_read_and_its_buffers_found(paper: Path, cli: Cli) -> None:
    found = cli("csdf", paper, "--throughput", "--channels", "--json").document
    assert found["minimum_buffers"] == found["lower_bound"] == 978
    assert found["full_throughput_buffers"] == 1010
    assert (found["actors"], found["channels"], found["firings"]) == (5, 4, 54)
    assert [row["tokens"] for row in found["channel_table"]] == [544, 384, 48, 2]
    assert found["live"] <= found["arena"] <= 978
    said = cli("csdf", paper, "--channels", "--schedule").out
    assert "978 elements; none are smaller" in said
    assert "n2 -> n3" in said
    assert "17 x n1, n2, n1, n2, " in said


@pytest.mark.skipif(host_target().block == 1, reason="no blocked layout here")
def test_a_pack_becomes_a_file(tmp_path: Path, cli: Cli) -> None:
    source = written(residual(), tmp_path / "r.onnx")
    pack = compile_onnx(source, tmp_path / "r", CompileOptions(chunk_bytes=CHUNK_BYTES))
    for overlap in WindowOverlap:
        file = tmp_path / f"{overlap.value}.xml"
        words = ("csdf", pack, "-o", file, "--overlap", overlap.value, "--json")
        of_pack = cli(*words).document
        assert of_pack.pop("file") == str(file)
        assert of_pack.pop("arena_bytes") <= of_pack.pop("buffer_bytes")
        assert cli("csdf", file, "--json").document == of_pack
        assert of_pack["arena"] <= of_pack["minimum_buffers"]


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ('rate="48"', 'rate="x"', "<port>: rate: 'x', expected a number of 0 or more"),
        ("</csdf>", "</csdg>", "no XML"),
    ],
)
def test_bad_files_are_named(old: str, new: str, said: str, paper: Path, cli: Cli) -> None:
    paper.write_text(paper.read_text("utf-8").replace(old, new), "utf-8")
    cli("csdf", paper).refuses(BAD, str(paper), said)


def test_cycles_of_a_file_are_named(tmp_path: Path, cli: Cli) -> None:
    path = tmp_path / "cycle.xml"
    for rate, said in (("1", "deadlocks: each of 'a' -> 'b' -> 'a' waits"), ("2", "inconsistent")):
        path.write_text(
            f"""<sdf3 type="csdf"><applicationGraph name="g"><csdf name="g">
            <actor name="a"><port type="out" name="o" rate="1"/><port type="in" name="i" rate="1"/></actor>
            <actor name="b"><port type="out" name="o" rate="{rate}"/>
            <port type="in" name="i" rate="1"/></actor>
            <channel name="ab" srcActor="a" srcPort="o" dstActor="b" dstPort="i"/>
            <channel name="ba" srcActor="b" srcPort="o" dstActor="a" dstPort="i"/>
            </csdf></applicationGraph></sdf3>""",
            "utf-8",
        )
        cli("csdf", path).refuses(BAD, str(path), said, "'a' -> 'b'")


def test_a_dash_is_standard_output(
    paper: Path, cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert cli("csdf", paper, "-o", "-").out == paper.read_text("utf-8")
    assert not Path("-").exists()
    refused = cli("csdf", paper, "-o", "-", "--json")
    assert refused.code == BAD
    assert "both go to standard output" in refused.err
