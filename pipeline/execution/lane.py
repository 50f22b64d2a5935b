"""A lane, one of several requests in a sweep: its tensors, and its part of the memory."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from models.network.fields import STRINGS
from models.packs.records.ports import Port
from pipeline.devices.base import (
    Block,
    Cell,
    DeviceLostError,
    KernelStoppedError,
    Launch,
    StoppableLaunch,
    as_strings,
    takes,
)
from pipeline.devices.device_memory import Memory
from pipeline.execution.deadlines import check_limits
from pipeline.execution.errors import CancelledError, DeadlineError, InputError
from pipeline.execution.given import Arrays, GivenRows, Take, Tensor, Tensors, copies
from pipeline.execution.table_reads import Table
from pipeline.planning.calls import Argument, UnsizedValue
from pipeline.planning.plan import Plan, Space
from pipeline.program.program import Program

# Several requests in one sweep: each step runs for every lane before its weights are released.
#
# Invariant: what happens to one lane, its end before time or its failure, changes nothing for the others:
# lanes have inputs, arenas and bindings of their own, and share nothing but weights and scratch.


class Lane(NamedTuple):
    """One request of a sweep.

    ``inputs``: graph inputs by name, with exactly their dtypes and shapes; all that have no default.
    Nothing holds them when ``take`` is called with the outputs by name, views that are gone when it
    returns. ``deadline``: on time.monotonic's clock. ``cancelled`` is asked between kernels.
    """

    inputs: Tensors
    deadline: float | None = None
    cancelled: Callable[[], bool] = lambda: False
    take: Take[Any] = copies


class LaneRun:
    """The ``lanes`` of one sweep: which of them still run, and why the others stopped."""

    def __init__(self, lanes: Sequence[Lane]) -> None:
        self._lanes = lanes
        #: Lanes that have not stopped, by position.
        self.running: tuple[int, ...] = tuple(range(len(lanes)))
        self.errors: dict[int, Exception] = {}
        #: When the sweep is of no use to any lane any more; None: it always is to one.
        self.deadline = _last(lanes)

    def all_stopped(self) -> bool:
        """Return whether no lane waits for the sweep; looks at each lane's cancellation."""
        for lane in self.running:
            if self._lanes[lane].cancelled():
                self.stop(lane, CancelledError("cancelled"))
        return not self.running

    def stop(self, lane: int, error: Exception) -> None:
        """Take a lane out of the sweep.

        Where a kernel was stopped because nobody waits for its result, that is the error.
        """
        if isinstance(error, KernelStoppedError):
            error = self.end_of(lane) or error
        self.running = tuple(each for each in self.running if each != lane)
        self.errors[lane] = error

    def each(self, act: Callable[[int], None]) -> None:
        """Do ``act`` for each lane that runs; one that fails stops alone.

        Raises:
            DeviceLostError: no lane can go on.
        """
        for lane in self.running:
            try:
                act(lane)
            except DeviceLostError:
                raise
            except Exception as exc:  # noqa: BLE001  whatever it is, the others have no part in it
                self.stop(lane, exc)

    def step(self, launches: Sequence[Launch]) -> None:
        """Run one step: ``launches[lane]`` for each lane that is neither cancelled nor late."""

        def launch(lane: int) -> None:
            self._check(lane)
            launches[lane]()

        self.each(launch)

    def end_of(self, position: int) -> CancelledError | DeadlineError | None:
        """Return why nobody waits for the request at ``position`` any more; None: somebody does."""
        try:
            self._check(position)
        except (CancelledError, DeadlineError) as exc:
            return exc
        return None

    def _check(self, lane: int) -> None:
        request = self._lanes[lane]
        check_limits(request.deadline, request.cancelled)


def _last(lanes: Sequence[Lane]) -> float | None:
    """Return the last deadline of ``lanes``; None where one of them has none."""
    last: float | None = None
    for lane in lanes:
        if lane.deadline is None:
            return None
        last = lane.deadline if last is None else max(last, lane.deadline)
    return last


# What a lane may be given.


class ExpectedInputs:
    """What ``ports`` take, known before the first request comes.

    ``tables``: of the inputs that are indices, what they say rows of.
    """

    def __init__(self, ports: tuple[Port, ...], tables: Mapping[str, Table]) -> None:
        self._tables = tables
        self._ports = {port.name: port for port in ports}
        self._required = {port.name for port in ports if port.default is None}
        self._numbers = {
            port.name: (port.shape, np.dtype(port.dtype)) for port in ports if port.dtype != STRINGS
        }

    def check(self, inputs: Tensors) -> None:
        """Check that ``inputs`` are exactly that; those with a default may be left out.

        Raises:
            InputError: one is unknown, missing, or of another dtype or shape; an index is no row.
        """
        self._check_ports(inputs)
        for name, table in self._tables.items():
            if name in inputs:
                table.check(np.asarray(inputs[name]))

    def _check_ports(self, inputs: Tensors) -> None:
        for name in inputs:
            tensor, like = inputs[name], self._numbers.get(name)
            if like is None or tensor.shape != like[0] or tensor.dtype != like[1]:
                break  # strings are always looked at
        else:
            if self._required <= inputs.keys():
                return
        self._find_fault(inputs)

    def _find_fault(self, inputs: Tensors) -> None:
        """Raise what is wrong with ``inputs``, if anything is."""
        for name in inputs:
            if name not in self._ports:
                taken = ", ".join(self._ports)
                raise InputError(f"unknown input {name!r}; the model takes {taken}")
        for name, port in self._ports.items():
            if name not in inputs:
                if port.default is None:
                    raise InputError(f"input {name!r} is missing")
                continue
            array = inputs[name]
            if not takes(port, array):
                raise InputError(
                    f"input {name!r} is {array.dtype}{list(array.shape)}, "
                    f"the model takes {port.dtype}{list(port.shape)}"
                )


# The memory of one lane: its part of the arena, and cells for what no plan counts.


class LaneMemory:
    """The memory of lane ``number``: ``space`` returns that of a space, which lanes share or divide."""

    def __init__(
        self, program: Program, plan: Plan, space: Callable[[Space], Memory], number: int
    ) -> None:
        self._plan = plan
        self._program = program
        self._space = space
        self._start = number * plan.lane_bytes
        self.arena = space("arena")
        #: Its launches that can be ended while they run.
        self.stoppable: list[StoppableLaunch] = []
        self._cells = {
            index: Cell() for index, value in enumerate(program.values) if value.is_loose
        }
        self._given = {
            buffer.id: GivenRows() for buffer in plan.buffers if buffer.space == "request"
        }
        # Looked up once: to make an array of an address takes as long as a small kernel.
        copied = [port for port in program.inputs if port.value not in self._given]
        self._targets = self._in_place(copied)
        self._views = self._in_place(program.outputs)
        for view in self._views.values():
            view.flags.writeable = False

    def bound(self, argument: Argument) -> Any:
        """Return where an argument of a call lies, for kernels, or what holds it during an inference."""
        if isinstance(argument, UnsizedValue):
            return self._cells[argument.value]
        buffer, box = self._plan.buffers[argument.buffer], argument.box
        if buffer.space == "request":
            given = self._given[buffer.id]
            if box is None:
                return given
            return partial(given.put_rows, first_plane=box[0].start, first_row=box[1].start)
        # Weights in the arena lie in that of the first lane.
        is_private = buffer.space == "arena" and buffer.holds != "weights"
        start = buffer.offset + argument.offset + (self._start if is_private else 0)
        array = self._space(buffer.space).array(start, argument.dtype, argument.shape)
        return array if box is None else Block(array, *box)

    def _offset(self, value: int) -> int:
        """Return where a value lies in the arena."""
        return self._start + self._plan.offset(self._plan.values[value])

    def put(self, inputs: Tensors) -> None:
        """Copy all inputs in; those that only regions read, by rows, are not copied.

        Raises:
            InputError: strings in one are not UTF-8.
        """
        for port in self._program.inputs:
            tensor, target = inputs[port.name], self._targets.get(port.name)
            if target is not None and isinstance(tensor, np.ndarray):
                target[...] = tensor
            else:
                self._put(port, tensor)

    def views(self) -> Arrays:
        """Return the outputs where they lie, read-only: gone with the next sweep, or when forgotten."""
        if len(self._views) == len(self._program.outputs):
            return self._views
        return {port.name: self._view(port) for port in self._program.outputs}

    def forget_inputs(self) -> None:
        """Let go of the tensors of the request."""
        for cell in self._given.values():
            cell.clear()

    def stop(self, stopped: bool) -> None:
        """End launches that may run long, and those to come, until this is called with false."""
        for launch in self.stoppable:
            launch.stop(stopped)

    def forget(self) -> None:
        """Let go of all that belongs to one sweep: also tensors of unknown size."""
        self.forget_inputs()
        for cell in self._cells.values():
            cell.clear()

    def close(self) -> None:
        """Let go of the arena: views would keep its memory."""
        self._targets.clear()
        self._views.clear()

    def _put(self, port: Port, tensor: Tensor) -> None:
        if port.value in self._given:
            self._given[port.value].hold(tensor)
            return
        if not port.is_loose:
            self._write(port, tensor)
            return
        try:
            self._cells[port.value].array = as_strings(np.asarray(tensor))
        except UnicodeDecodeError as exc:
            raise InputError(f"input {port.name!r} has bytes that are not UTF-8: {exc}") from exc

    def _write(self, port: Port, tensor: Tensor) -> None:
        target = self._targets.get(port.name)
        if target is None or isinstance(tensor, np.ndarray):
            self.arena.write(self._offset(port.value), np.ascontiguousarray(tensor))
        else:
            tensor.put(target)  # made where it is needed, rather than made and copied

    def _view(self, port: Port) -> NDArray[Any]:
        if port.is_loose:
            return self._cells[port.value].array
        view = self._views.get(port.name)
        if view is None:
            view = self.arena.read(self._offset(port.value), port.dtype, port.shape)
            view.flags.writeable = False
        return view

    def _in_place(self, ports: Iterable[Port]) -> dict[str, NDArray[Any]]:
        """Return where those of ``ports`` lie that the host may touch, by name."""
        known = [port for port in ports if not port.is_loose]
        arrays = {
            port.name: self.arena.in_place(self._offset(port.value), port.dtype, port.shape)
            for port in known
        }
        return {name: array for name, array in arrays.items() if array is not None}
