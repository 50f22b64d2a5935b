"""What an instance says it does, by what has happened to it."""

from types import SimpleNamespace
from typing import Any

from server.faults import Code, Fault
from server.repository.entry import Entry, Unloaded
from server.repository.instances import Instance, State, Uses

NOTHING: Any = None
GONE = Fault(Code.READ_FAILED, "the disk is gone", permanent=False)


def opened() -> tuple[Instance, Any]:
    """An instance that serves, and its worker."""
    instance = Instance("a", NOTHING, NOTHING, Uses())
    worker: Any = SimpleNamespace(fault=None, abandoned=False)
    instance.serve(worker)
    return instance, worker


def test_it_opens_serves_and_is_closed() -> None:
    instance = Instance("a", NOTHING, NOTHING, Uses())
    assert (instance.state, instance.serves) == (State.OPENING, False)
    instance, worker = opened()
    assert (instance.state, instance.serves, instance.fault) == (State.SERVING, True, None)
    assert instance.drain() is worker
    assert (instance.state, instance.serves) == (State.DRAINING, False)
    instance.close()
    assert (instance.state, instance.worker) == (State.CLOSED, None)


def test_it_fails_with_its_worker() -> None:
    instance, worker = opened()
    worker.fault = GONE
    assert (instance.state, instance.serves, instance.fault) == (State.FAILED, False, GONE)


def test_an_abandoned_one_is_stuck_until_it_ends() -> None:
    instance, worker = opened()
    worker.abandoned = True
    states = [instance.state]
    instance.drain()
    states.append(instance.state)
    instance.close()
    assert [*states, instance.state] == [State.STUCK, State.STUCK, State.CLOSED]


def test_a_lost_one_stays_the_one_of_its_entry() -> None:
    """So no other takes the memory that a disk may still write to."""
    entry, (instance, _) = Entry("a"), opened()
    entry.condition = instance
    instance.lose(GONE)
    entry.become(Unloaded())
    assert (instance.state, entry.is_lost, entry.instance) == (State.LOST, True, None)
    assert (entry.state, entry.absence, entry.may_pass) == ("UNAVAILABLE", "failed", False)
    assert entry.reason == "the disk is gone"
