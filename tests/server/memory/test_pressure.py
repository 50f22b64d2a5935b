"""When the ceiling of a budget goes down and up, on a clock of the test's own."""

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from server.memory.pressure import CALM_SECONDS, Ceiling, Observation, Pressure

MIB = 1 << 20
TOTAL = 100 * MIB


class Box:
    """A machine with a neighbour, and models that give back whatever they are lowered for."""

    def __init__(self, free: int | None = 200 * MIB, total: int = TOTAL) -> None:
        self.pressure = Pressure(total)
        self.used, self.free, self.now = total, free, 0.0
        self.raised_at: list[float] = []
        self.floor = 0

    def check(self, *, event: bool = False) -> Ceiling | None:
        """Observation once, a second later."""
        self.now += 1.0
        lacking = None if self.free is None else 24 * MIB - self.free
        ceiling = self.pressure.see(Observation(self.now, event, lacking, self.used))
        if ceiling is None:
            return None
        if ceiling.signal:
            self._use(max(min(ceiling.n_bytes, self.used), self.floor))
            self.pressure.relieved(self.used)
        else:
            self.raised_at.append(self.now)
            self._use(ceiling.n_bytes)
        return ceiling

    def _use(self, n_bytes: int) -> None:
        if self.free is not None:
            self.free += self.used - n_bytes
        self.used = n_bytes

    def wait(self, seconds: int) -> None:
        for _ in range(seconds):
            self.check()

    def neighbour_allocates(self, n_bytes: int) -> None:
        assert self.free is not None
        self.free -= n_bytes


def test_nothing_happens_where_memory_is_free() -> None:
    box = Box()
    box.wait(100)
    assert box.used == TOTAL
    assert not box.raised_at


def test_what_lacks_is_released() -> None:
    box = Box(free=30 * MIB)
    box.neighbour_allocates(20 * MIB)
    ceiling = box.check()
    assert ceiling == Ceiling(TOTAL - 14 * MIB, "headroom")
    assert box.free == 24 * MIB


def test_an_event_without_figures_releases_an_eighth() -> None:
    box = Box(free=None)
    assert box.check(event=True) == Ceiling(TOTAL - TOTAL // 8, "event")
    assert box.check() is None


def test_events_lower_the_ceiling_once_a_second() -> None:
    pressure = Pressure(TOTAL)
    assert pressure.see(Observation(5.0, True, None, TOTAL)) is not None
    assert pressure.see(Observation(5.9, True, None, TOTAL // 2)) is None
    assert pressure.see(Observation(6.0, True, None, TOTAL // 2)) is not None


def test_the_ceiling_starts_from_what_is_used() -> None:
    pressure = Pressure(TOTAL)
    ceiling = pressure.see(Observation(0.0, False, 10 * MIB, 40 * MIB))
    assert ceiling == Ceiling(30 * MIB, "headroom")


def test_it_goes_up_by_halves_when_memory_is_free_again() -> None:
    box = Box(free=None)
    for _ in range(4):
        box.check(event=True)
    lowest = box.used
    box.wait(29)
    assert box.used == lowest
    box.wait(2)
    assert lowest < box.used <= lowest + (TOTAL - lowest + 1) // 2
    box.wait(400)
    assert box.used == TOTAL
    waits = [b - a for a, b in pairwise(box.raised_at)]
    assert min(waits) >= CALM_SECONDS


def test_it_uses_half_of_what_is_free_at_the_maximum() -> None:
    box = Box(free=30 * MIB)
    box.neighbour_allocates(40 * MIB)
    box.check()
    box.neighbour_allocates(-10 * MIB)
    box.wait(31)
    assert box.used == TOTAL - 34 * MIB + 5 * MIB


def test_an_unsteady_neighbour_has_models_grow_once_a_minute_or_less() -> None:
    box = Box(free=40 * MIB)
    for second in range(1200):
        if second % 5 == 0:
            box.neighbour_allocates(-30 * MIB if second % 10 else 30 * MIB)
        box.check()
    waits = [b - a for a, b in pairwise(box.raised_at)]
    assert all(seconds >= 60 for seconds in waits)


def test_pressure_soon_after_a_raise_doubles_the_wait_up_to_ten_minutes() -> None:
    box = Box(free=None)
    box.check(event=True)
    for _ in range(8):
        count = len(box.raised_at)
        while len(box.raised_at) == count:
            box.check()
        box.wait(4)
        box.check(event=True)
    waits = [b - a for a, b in pairwise(box.raised_at)]
    assert waits[0] >= 2 * CALM_SECONDS
    assert all(later >= earlier for earlier, later in pairwise(waits))
    assert 600 <= waits[-1] <= 610


def test_the_wait_is_short_again_after_a_raise_without_pressure() -> None:
    box = Box(free=None)
    box.check(event=True)
    box.wait(31)
    box.check(event=True)
    box.wait(400)
    waits = [b - a for a, b in pairwise(box.raised_at)]
    assert waits[0] > CALM_SECONDS
    assert waits[-1] == CALM_SECONDS


def test_what_no_model_can_release_is_requested_once() -> None:
    box = Box(free=10 * MIB)
    box.floor = TOTAL - MIB
    lowered = [ceiling for _ in range(50) if (ceiling := box.check()) is not None]
    assert len(lowered) == 1
    box._use(TOTAL)  # another model came
    assert box.check() is not None


@given(st.lists(st.tuples(st.booleans(), st.integers(-60, 60)), max_size=80), st.integers(0, TOTAL))
def test_the_ceiling_stays_within_the_budget(steps: list[tuple[bool, int]], floor: int) -> None:
    box = Box()
    box.floor = floor
    for event, mib in steps:
        box.neighbour_allocates(mib * MIB)
        before = box.pressure.ceiling_bytes
        ceiling = box.check(event=event)
        now = box.pressure.ceiling_bytes
        assert 0 <= now <= TOTAL
        if ceiling is None:
            assert now == before
        else:
            assert (now < before) == bool(ceiling.signal)
