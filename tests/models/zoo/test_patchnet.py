"""Networks built from a memory budget: what seed 004 counts, and what no budget or grid can be."""

import json
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from models.detection.recipe import head_fault
from models.errors import ModelError, OnnxError
from models.graphs.metadata import MEMORY, read_metadata, write_metadata
from models.graphs.onnx_writer import skeleton_graph
from models.graphs.traits import count_parameters
from models.zoo import ENTRIES, build
from models.zoo.patchnet import patchnet, patchnet_ssdlite
from models.zoo.patchnet.design import MOST_PATCHES, DesignOptions, design, segment
from models.zoo.patchnet.tunnels import OUTPUT
from tests.examples import over
from tests.models.nets import answers
from tests.models.refusal import refuses
from tests.models.streamed import compiled, same, streamed

TINY = DesignOptions(budget=4096, image=(32, 32, 3), margin=4)
SMALL: dict[str, Any] = {"budget": 4096, "image": (32, 32, 3), "margin": 4, "classes": 10}


@given(
    st.integers(1, 300), st.integers(1, 300), st.integers(1, 12), st.integers(0, 400), st.booleans()
)
def test_patches_cover_the_image_and_none_leaves_it(
    height: int, width: int, patches: int, margin: int, central: bool
) -> None:
    try:
        found = segment((height, width, 3), patches, margin, central)
    except ModelError as fault:
        assert "pixels of an image of" in str(fault)  # noqa: PT017
        return
    assert len(found) == patches + central
    assert len({(patch.height, patch.width) for patch in found}) == 1
    rows, columns = set[int](), set[int]()
    for patch in found:
        assert patch.top >= 0 <= patch.left
        assert patch.top + patch.height <= height
        assert patch.left + patch.width <= width
        rows |= set(range(patch.top, patch.top + patch.height))
        columns |= set(range(patch.left, patch.left + patch.width))
    if margin or (height % 2 == width % 2 == 0 and patches == 4):
        assert len(rows) >= height - patches
        assert len(columns) >= width - patches


def test_patches_are_those_of_the_seed() -> None:
    patches = segment((224, 224, 3), 4, 18, central=True)
    assert {(patch.height, patch.width) for patch in patches} == {(130, 130)}  # Eq. 1
    assert [(patch.top, patch.left) for patch in patches] == [
        (0, 0),
        (0, 94),
        (94, 0),
        (94, 94),
        (47, 47),
    ]
    first, second = patches[:2]
    assert first.left + first.width - second.left == 2 * 18  # the overlap of neighbours


def test_the_peak_is_that_of_the_seed() -> None:
    found = design(DesignOptions())
    assert found.peak == 130 * 130 * 3 + 65 * 65 * 3  # 63 KB as int8, 254 KB as fp32 (Table 1)
    assert found.peak <= 64 << 10
    assert 4 * found.peak <= 254_000


@over("expansion", [2, 4, 6, 8])
def test_the_expansion_does_not_move_the_peak(expansion: int) -> None:
    found, usual = design(DesignOptions(expansion=expansion)), design(DesignOptions())
    assert [layer.peak for layer in found.layers] == [layer.peak for layer in usual.layers]
    assert found.layers[-1].expanded == expansion * found.layers[-1].outputs[2]


def test_smaller_margins_take_less_memory() -> None:
    peaks = [design(DesignOptions(margin=margin)).peak for margin in (18, 10, 5, 0)]
    assert all(one > other for one, other in pairwise(peaks))


@given(st.integers(1_000, 400_000), st.integers(16, 320), st.sampled_from([1, 4, 9]))
def test_no_layer_exceeds_the_budget_and_the_smallest_is_named(
    budget: int, side: int, patches: int
) -> None:
    options = DesignOptions(budget=budget, image=(side, side, 3), patches=patches, margin=4)
    try:
        found = design(options)
    except ModelError as fault:
        least = int(str(fault).rpartition(" ")[2])
        assert least > budget
        assert design(replace(options, budget=least)).peak <= least
        with pytest.raises(ModelError):
            design(replace(options, budget=least - 1))
        return
    assert found.peak <= budget
    assert all(one.outputs == other.inputs for one, other in pairwise(found.layers))


def test_what_cannot_be_is_refused() -> None:
    with refuses(ModelError, "no network fits into 50000 numbers", "takes 53967"):
        design(DesignOptions(budget=50_000))
    with refuses(ModelError, "a grid of 8 x 8 patches leaves no pixels of an image of 7 x 224"):
        design(DesignOptions(patches=64, image=(7, 224, 3)))
    with refuses(ModelError, "a grid of 2 x 2 patches leaves 2 x 2 pixels of an image of 2 x 2"):
        design(DesignOptions(image=(2, 2, 3)))
    with refuses(ModelError, "patches of 8 x 8 pixels end before stage 3"):  # of a detector
        patchnet_ssdlite(8)
    for patches in (0, -1, MOST_PATCHES + 1):
        with refuses(ModelError, f"{patches} patches are not from 1 to {MOST_PATCHES}"):
            design(DesignOptions(patches=patches))
    with refuses(ModelError, "margin -1 is negative"):
        design(DesignOptions(margin=-1))
    with refuses(ModelError, "expansion 0 is not from 1 to 16"):
        design(DesignOptions(expansion=0))
    with refuses(ModelError, "stem 65 is not from 1 to 64"):
        design(DesignOptions(stem=65))


def test_shared_tunnels_have_the_weights_of_one() -> None:
    own, shared = (
        count_parameters(skeleton_graph(patchnet(32, **SMALL, shared=shared)))
        for shared in (False, True)
    )
    classifier = 10 * (design(TINY).layers[-1].outputs[2] + 1)
    assert own - classifier == 5 * (shared - classifier)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["patchnet", "patchnet-ssdlite"])
def test_tunnels_stream(name: str, tmp_path: Path) -> None:
    source = tmp_path / f"{name}.onnx"
    built = build(name, source, options=SMALL)
    pack = compiled(source, tmp_path)
    manifest = pack.manifest
    assert manifest.parameters == built.parameters
    assert manifest.designed is not None
    assert manifest.designed.budget == 4096
    assert manifest.designed.peak.numbers == design(TINY).peak
    x = np.random.default_rng(0).standard_normal((1, 3, 32, 32), np.float32)
    expected = streamed(pack, {"image": x}, "pre")
    same(streamed(pack, {"image": x}), expected)
    same(expected, answers(source, {"image": x}), rtol=1e-4, atol=1e-4)
    if manifest.detection:
        assert len(manifest.detection.heads) == 1
        form = {OUTPUT: ("float32", expected[OUTPUT].shape)}
        assert head_fault(manifest.detection, form) is None


def test_other_networks_take_no_such_options(tmp_path: Path) -> None:
    with refuses(ModelError, "zoo: resnet18 has no option margin"):
        build("resnet18", tmp_path / "m.onnx", options={"margin": 4})


def test_memory_in_a_file_is_checked() -> None:
    skeleton = ENTRIES["patchnet"].skeleton(224)
    entries = {item.key: item.value for item in skeleton.metadata_props}
    said = json.loads(entries[MEMORY])
    write_metadata(skeleton, {MEMORY: {**said, "budget": 10}})
    with pytest.raises(OnnxError, match=r"metadata layerstream\.memory: .*holds 63375 of 10"):
        read_metadata(skeleton, Path("m.onnx"))
