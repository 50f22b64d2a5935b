"""A region whose phases make boxes, planned: what lies where, what happens."""

from collections.abc import Callable
from typing import TypeVar

from pipeline.program.boxes.layout import Keeping, Layout
from pipeline.program.boxes.phases import Phases
from pipeline.program.boxes.stretch import Stretch
from pipeline.program.region_plan import RegionPlan, with_equal_as_one

_Cut = TypeVar("_Cut", bound=Stretch)


def planned(stretch: _Cut, keeping: Callable[[_Cut, Layout], Keeping]) -> RegionPlan:
    """Plan ``stretch``, whose phases keep for later ones what ``keeping`` says."""
    layout = Layout(stretch)
    happening = Phases(stretch, layout, keeping(stretch, layout))
    phases = with_equal_as_one(map(happening.phase, range(stretch.phases)))
    return RegionPlan(
        stretch.region,
        stretch.operators,
        len(stretch.operators),
        layout.strips.built(),
        phases,
        stretch.outside,
        stretch.written,
        stretch.over,
    )
