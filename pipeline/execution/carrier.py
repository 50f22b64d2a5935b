"""Requests carried through sweeps: their tensors in, one sweep for all of them, what each takes out.

Invariant: between sweeps nothing here holds a tensor of a request.
"""

from collections.abc import Sequence
from typing import Any

from loader.readers.interface import Reader
from pipeline.execution.interleaving.baton import FREE, ComputeClaim
from pipeline.execution.lane_memory import LaneMemory
from pipeline.execution.lanes import Lane, LaneRun
from pipeline.execution.statistics import SweepStatistics, SweepTally
from pipeline.execution.sweeps.sweep import Sweeper
from pipeline.execution.weight_reads import WeightReads
from pipeline.program.program import Program
from pipeline.schedule.schedule import Stage
from pipeline.schedule.trace import Recorder


class Carrier:
    """Carries as many requests at once as there are ``memories``, one thread at a time.

    ``read_bytes``: of each sweep. ``verify``: check every span on every sweep; without it the first whole
    sweep checks, later ones trust the disk.
    """

    def __init__(
        self,
        program: Program,
        memories: Sequence[LaneMemory],
        reads: WeightReads,
        reader: Reader,
        read_bytes: int,
        verify: bool,
    ) -> None:
        #: The lanes of the sweep that runs: kernels that are bound for several ask.
        self.running = _NOBODY
        self.tally = SweepTally()
        self.sweeper = _idle()
        self._defaults = program.defaults()
        self._memories = memories
        self._reads = reads
        self._reader = reader
        self._read_bytes = read_bytes
        self._verify = verify
        self._verified = False

    def carry(
        self,
        lanes: Sequence[Lane],
        run: LaneRun,
        record: Recorder | None,
        claim: ComputeClaim = FREE,
    ) -> tuple[dict[int, Any], SweepStatistics]:
        """Sweep once for all ``lanes`` that run; return what these took, and what the sweep took.

        Raises:
            As Engine.answer, for what ends all lanes; what ends one is kept in ``run``.
        """
        outputs: dict[int, Any] = {}
        memories = self._memories

        def put(lane: int) -> None:
            inputs = lanes[lane].inputs
            memories[lane].put({**self._defaults, **inputs} if self._defaults else inputs)

        def take(lane: int) -> None:
            outputs[lane] = lanes[lane].take(memories[lane].views())

        self._reader.check()
        self.running = run
        try:
            run.each(put)
            statistics = self._sweep(run, record, claim)
            for memory in memories:
                memory.forget_inputs()
            run.each(take)
        finally:
            self.running = _NOBODY
            for memory in memories:
                memory.forget()
        return outputs, statistics

    def rest(self) -> None:
        """Let go of the kernels."""
        self.sweeper = _idle()

    def _sweep(self, run: LaneRun, record: Recorder | None, claim: ComputeClaim) -> SweepStatistics:
        verified = self._verify or not self._verified
        self._reads.verify, self._reads.deadline = verified, run.deadline
        try:
            statistics = self.sweeper.run(run.deadline, run.all_stopped, record, claim)
        except BaseException:
            self.tally.failures += 1
            raise
        self._verified = True
        self.tally.add(self._read_bytes, statistics.stall_seconds)
        if not verified and not self._read_bytes:
            return statistics
        return statistics._replace(read_bytes=self._read_bytes, verified=verified)


_NOBODY = LaneRun(())


def _idle() -> Sweeper:
    return Sweeper((Stage("kernel", ()),), (), ())
