"""Frames between partitions, in any order of events: nothing is read half written, nothing is lost."""

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from pipeline.execution.partitions.handover import Handover, Turn
from pipeline.planning.plan import BUFFERS


class Pipelined(RuleBasedStateMachine):
    """Frames enter, begin, end and leave; ``memory`` is what real buffers would hold."""

    def __init__(self) -> None:
        super().__init__()
        self.partitions = 3
        self.handover = Handover(self.partitions)
        self.turns: dict[int, Turn] = {}
        self.memory: dict[tuple[int, int], int] = {}
        self.through: list[int] = []
        self.gone: set[int] = set()
        self.begun: set[int] = set()
        self.entered: list[int] = []

    @rule()
    def enter(self) -> None:
        self.entered.append(self.handover.enter())

    @precondition(lambda self: self.handover.frames)
    @rule(data=st.data())
    def begin(self, data: st.DataObject) -> None:
        waiting = [frame for frame in self.handover.frames if frame not in self.turns]
        if not waiting:
            return
        frame = data.draw(st.sampled_from(waiting))
        turn = self.handover.begin(frame)
        if turn is None:
            return
        if turn.reads is not None:
            assert self.memory[turn.partition - 1, turn.reads] == frame, "it reads what it wrote"
        if turn.writes is not None:
            self.memory[turn.partition, turn.writes] = frame
        self.turns[frame] = turn
        self.begun.add(frame)

    @precondition(lambda self: self.turns)
    @rule(data=st.data())
    def end(self, data: st.DataObject) -> None:
        frame = data.draw(st.sampled_from(sorted(self.turns)))
        turn = self.turns.pop(frame)
        self.handover.end(frame)
        if turn.partition == self.partitions - 1:
            self.through.append(frame)

    @precondition(lambda self: self.handover.frames)
    @rule(data=st.data())
    def leave(self, data: st.DataObject) -> None:
        frame = data.draw(st.sampled_from(self.handover.frames))
        self.handover.leave(frame)
        self.turns.pop(frame, None)
        self.gone.add(frame)

    @invariant()
    def what_is_read_is_not_written(self) -> None:
        reads = [(t.partition - 1, t.reads) for t in self.turns.values() if t.reads is not None]
        writes = [(t.partition, t.writes) for t in self.turns.values() if t.writes is not None]
        assert not set(reads) & set(writes)
        assert len({*reads, *writes}) == len(reads) + len(writes)

    @invariant()
    def a_partition_runs_one_frame(self) -> None:
        running = [turn.partition for turn in self.turns.values()]
        assert len(running) == len(set(running))

    @invariant()
    def frames_come_out_in_order_and_none_is_lost(self) -> None:
        assert self.through == sorted(self.through)
        assert sorted([*self.through, *self.gone, *self.handover.frames]) == self.entered

    @invariant()
    def few_frames_lie_between(self) -> None:
        edges = self.partitions - 1
        assert len(self.begun & set(self.handover.frames)) <= BUFFERS * edges

    def teardown(self) -> None:
        """Whatever happened: frames that are left go through when each may begin as soon as it can."""
        for frame in list(self.turns):
            self.handover.end(frame)
        for _ in range(self.partitions * (len(self.handover.frames) + 1)):
            for frame in self.handover.frames:
                if self.handover.begin(frame) is not None:
                    self.handover.end(frame)
        assert not self.handover.frames


TestPipelined = Pipelined.TestCase
