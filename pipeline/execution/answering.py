"""What answers requests for one model: an engine, or a pipeline of several.

Invariant: a request has one way in, ``run_lanes``; those that are asked for alone are a single lane.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from numpy.typing import NDArray

from pipeline.execution.baton import FREE, ComputeClaim
from pipeline.execution.given import Take, Tensors, copies
from pipeline.execution.lane import Lane
from pipeline.execution.statistics import EngineStatistics, SweepStatistics
from pipeline.planning.plan import AnyPlan
from pipeline.program.program import Program
from pipeline.schedule.trace import Recorder

T = TypeVar("T")
#: What a lane took of its outputs, and what the sweep took.
Answer = tuple[Any, SweepStatistics]


class Answering(ABC):
    """Answers requests for ``program`` as ``plan`` says."""

    program: Program

    @property
    @abstractmethod
    def plan(self) -> AnyPlan: ...

    def run(
        self,
        inputs: Tensors,
        deadline: float | None = None,
        cancelled: Callable[[], bool] = lambda: False,
        record: Recorder | None = None,
    ) -> tuple[dict[str, NDArray[Any]], SweepStatistics]:
        """Answer one request; return copies of the outputs by name, and what the sweep took.

        Arguments and errors are those of ``answer``.
        """
        return self.answer(inputs, copies, deadline, cancelled, record)

    def answer(
        self,
        inputs: Tensors,
        take: Take[T],
        deadline: float | None = None,
        cancelled: Callable[[], bool] = lambda: False,
        record: Recorder | None = None,
    ) -> tuple[T, SweepStatistics]:
        """Answer one request; return what ``take`` makes of the outputs, and what the sweep took.

        Args:
            inputs: graph inputs by name, with exactly their dtypes and shapes; all that have no default.
                Nothing here holds them when ``take`` is called: a caller may empty the mapping then.
            take: gets the outputs by name, views that are gone when it returns.
            deadline: on time.monotonic's clock; checked between kernels and while waiting, and of kernels
                that may run long as ``wake`` says.
            cancelled: asked between kernels, and while waiting for the arena as ``wake`` says.
            record: receives every event of the schedule.

        Raises:
            InputError: inputs are not what the model takes. EngineClosedError: closed.
            CancelledError, DeadlineError: as asked. LoaderError: a read failed or was damaged, or
            weights.bin is no longer the file that was opened (FileChangedError).
            KernelError: a kernel failed. DrainError: a read never ended; the engine is unusable.
            After all but the last the next call works.
        """
        (answer,) = self.run_lanes([Lane(inputs, deadline, cancelled, take)], record)
        if isinstance(answer, Exception):
            raise answer
        return answer

    def run_lanes(
        self,
        lanes: Sequence[Lane],
        record: Recorder | None = None,
        claim: ComputeClaim = FREE,
        *,
        keeps_core: bool = True,
    ) -> list[Answer | Exception]:
        """Answer up to ``plan.batch_size`` requests in one inference; weights are read once.

        ``claim``: to compute, where sweeps of several engines run at once. ``keeps_core``: whether the
        calling thread stays on the core that the device's own leave, which costs more than a sweep of a
        fraction of a millisecond gains.

        Return for each lane its answer, or why it has none: its own error, as ``answer`` raises them,
        while the others go on; or the error of the sweep, which all have that had not stopped. On an
        asynchronous device a kernel that fails is the sweep's.

        Raises:
            ValueError: there are none, or more than planned.
        """
        return self.run_batch(lanes, record, claim, keeps_core)

    @abstractmethod
    def run_batch(
        self,
        requests: Sequence[Lane],
        record: Recorder | None,
        claim: ComputeClaim,
        keeps_core: bool,
    ) -> list[Answer | Exception]:
        """Do as ``run_lanes``."""

    @property
    @abstractmethod
    def callers(self) -> int:
        """How many threads may ask at a time."""

    @property
    @abstractmethod
    def broken(self) -> str:
        """Why it can never answer again; empty as long as it can."""

    @property
    @abstractmethod
    def lost_device(self) -> bool:
        """Whether only a new process can use the device again."""

    @property
    @abstractmethod
    def reads_nothing(self) -> bool:
        """Whether a sweep computes only, on the thread that runs it: no reads, no other device."""

    @property
    def takes_turns(self) -> bool:
        """Whether a sweep may have to wait until other models have finished theirs.

        Never that of partitions, which compute at once, each in an arena of its own.
        """
        return False

    @property
    @abstractmethod
    def ahead_bytes(self) -> int:
        """What is read for a request before it comes."""

    @abstractmethod
    def wake(self) -> None:
        """Have calls that wait, or run a long kernel, look whether they are cancelled or late."""

    @abstractmethod
    def statistics(self) -> EngineStatistics:
        """Return figures since it was opened; memory is what was allocated and measured, not planned."""

    @abstractmethod
    def huge_page_bytes(self) -> int:
        """Return how much of the memory for weights lies on huge pages."""

    @abstractmethod
    def settle(self) -> None:
        """Wait for the reads that run ahead of the next sweep; afterwards nothing is in flight.

        A read that does not end leaves it broken.
        """

    def sleep(self) -> bool:
        """Give its pages to the system between inferences; the next one reads the weights again.

        Return whether it did. What it reserves, and sessions and bindings, stay as they are.
        """
        return False

    @property
    def is_asleep(self) -> bool:
        """Whether the next inference has to read resident weights first."""
        return False

    @abstractmethod
    def close(self) -> None:
        """Give all memory back and close the readers. Waits for the sweeps that run."""
