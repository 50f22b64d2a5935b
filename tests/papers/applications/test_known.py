"""What a search remembers stays within its bound, and is what was kept."""

from papers.applications.known import CountCache


def test_memory_is_bounded_and_what_is_known_is_right() -> None:
    known = CountCache(most_numbers=1000)
    held = []
    for key in range(200):
        known.keep(key, (key,) * 10)
        there = [each for each in range(key + 1) if known.get(each) is not None]
        assert all(known.get(each) == (each,) * 10 for each in there)
        assert key in there
        held.append(len(there))
    assert 10 < max(held) < 30
