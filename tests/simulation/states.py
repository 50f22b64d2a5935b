"""States that runs shall reach: each is a place in the sources, which notes that it was reached.

A state has a function and a text with which one statement of that begins; the statement is preceded by a
call that counts it. So a state cannot outlive the code that it is about.
"""

from collections import Counter

#: Name of a state, its module and function, and how its statement begins.
STATES: tuple[tuple[str, str, str, str], ...] = (
    ("a read of the pass fails", "pipeline.execution.sweep", "_ended", "state.fail(error)"),
    ("a read ahead is there", "pipeline.execution.sweep", "_begin", "state.complete(0, index)"),
    ("a failed read ahead is tried again", "pipeline.execution.sweep", "_begin", "state.waiting"),
    ("a pass is stopped", "pipeline.execution.sweep", "run", "state.schedule.stop()"),
    ("the deadline ends a read", "pipeline.execution.sweep", "_wait_for_kernels", "raise Deadline"),
    ("a pass waits for another's kernels", "pipeline.execution.baton", "_wait", "left ="),
    ("the deadline ends that wait", "pipeline.execution.baton", "_wait", "raise Deadline"),
    ("an engine waits for the shared arena", "pipeline.execution.leases", "_wait", "self._changed"),
    (
        "a wait for the arena ends early",
        "pipeline.execution.leases",
        "acquire",
        "self._line.remove",
    ),
    ("a read hangs", "loader.pool.pool", "_set_aside", "_log.error"),
    ("a reader is replaced", "loader.pool.pool", "_replace", "self._reads.replace"),
    ("there is no thread to read", "loader.pool.pool", "_launch", "self._flights.land"),
    ("a file that is open was replaced", "loader.readers.files", "check", "self._was_replaced"),
    ("a line is full", "server.scheduling.line", "check_room", "raise BusyError"),
    ("a line takes a change first", "server.scheduling.line", "join_first", "self._changes"),
    ("an abandoned line", "server.scheduling.line", "abandon", "self._is_abandoned"),
    ("a request joins a batch", "server.scheduling.agenda", "_trials", "joined ="),
    ("a batch waits for more requests", "server.scheduling.agenda", "start", "waits ="),
    (
        "a refusal was late after all",
        "server.scheduling.agenda",
        "note_refusal",
        "self._overrun = ",
    ),
    ("a request waits for memory", "server.memory.request_memory", "take", "self._line.append"),
    ("a wait for memory is cancelled", "server.memory.request_memory", "take", "self._line.remove"),
    ("memory does not come in time", "server.requests.exchange", "hold", "raise LateError"),
    ("a client stalls", "server.requests.exchange", "sweep", "self.stalled"),
    ("a newcomer waits", "server.transport.registry", "arrive", "self.queue.add"),
    ("too many newcomers wait", "server.transport.registry", "arrive", "self.refused"),
    ("a connection gives way", "server.transport.registry", "_is_given_way", "self.dropped"),
    ("a connection's last answer", "server.transport.registry", "wants_back", "self._promised[m"),
    ("requests wait for the loop", "server.transport.intake", "take", "self._waiting.insert"),
    ("a refusal waits for its pause", "server.transport.intake", "_refuse", "self._refused.append"),
    (
        "a client leaves its request",
        "server.transport.connection",
        "connection_lost",
        "request.leave",
    ),
    (
        "a client does not take bytes",
        "server.transport.connection",
        "pause_writing",
        "self.writable",
    ),
    ("an evicted model is sent for", "server.repository.arrivals", "_send_for", "task ="),
    ("a request waits for a load", "server.repository.arrivals", "_wait", "done, _"),
    ("the load takes too long", "server.repository.arrivals", "_wait", "raise Deadline"),
    ("the load would take too long", "server.repository.arrivals", "_wait", "raise LateError"),
    ("a model is evicted", "server.repository.executor", "_evict", "entry.evictions"),
    ("a plan is changed", "server.repository.executor", "_reopen", "instance.place ="),
    ("a change of a plan fails", "server.repository.executor", "_reopen", "if instance.state is"),
    ("an opening fails", "server.repository.executor", "open", "entry.condition = condition"),
    ("a model serves as before", "server.repository.executor", "_open_again", "await self.open"),
    ("a version is replaced beside", "server.repository.executor", "retire", "await self._end"),
    (
        "a version is replaced in turn",
        "server.repository.balancing",
        "_replace_in_turn",
        "others =",
    ),
    ("plans go back", "server.repository.balancing", "_or_as_before", "await self._executor"),
    ("an instance drains", "server.repository.instances", "over", "self._over ="),
    ("growth is interrupted", "server.repository.reconciling", "_run", "self._grows = True"),
    ("planning is abandoned", "server.repository.planning_threads", "_abandon", "self._abandoned"),
    ("a model is tried again", "server.repository.retrying", "_try", "await self._repository"),
    ("a model leaves service", "server.repository.served_engine", "leave", "self.fault ="),
    ("a request leaves its line", "server.repository.worker", "_queued", "self.line.leave"),
    ("a stuck engine is given up", "server.repository.worker", "abandon", "self.abandoned"),
    (
        "two uploads of one model",
        "server.repository.uploads",
        "upload",
        'raise ConflictError(f"model',
    ),
)

_reached: list[Counter[str]] = []


def note_reached(reached: Counter[str]) -> None:
    """Have states be counted in ``reached``."""
    _reached[:] = [reached]


def reach(state: str) -> None:
    """Count ``state``."""
    if _reached:
        _reached[0][state] += 1
