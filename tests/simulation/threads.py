"""What stands in for ``threading``, ``queue``, ``time`` and thread pools in a simulation.

Classes have the interface of the library's, as far as the project uses it, and take their turns from
``tests.simulation.simulator``.
"""

import concurrent.futures
import itertools
import queue
import threading
import time
import types
from collections import deque
from collections.abc import Callable, Mapping
from typing import Any

import greenlet

from tests.simulation.simulator import simulation

_EPOCH = 1.7e9


class Thread:
    """A thread as a greenlet."""

    _indices = itertools.count()

    def __init__(
        self,
        group: None = None,
        target: Callable[..., object] | None = None,
        name: str | None = None,
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
        *,
        daemon: bool | None = None,
    ) -> None:
        self._call = target, args, kwargs or {}
        self.name = name or f"Thread-{next(self._indices)}"
        self.daemon = bool(daemon)
        self.ident = id(self)
        self.error: BaseException | None = None
        self.is_over = self._is_started = False
        # How often it was woken or fell asleep: a timer of an earlier wait has another number.
        self.token = 0
        self.is_late = False
        #: Whether it runs, or may go on; the locks that it has; whether it may be held up for a while.
        self.is_ready, self.locks, self.may_pause = True, 0, self.name != "loop"
        self.values: dict[int, dict[str, Any]] = {}
        self._joining: list[Thread] = []
        self.greenlet = greenlet.greenlet(self._run)

    def run(self) -> None:
        """Call the target."""
        target, args, kwargs = self._call
        if target is not None:
            target(*args, **kwargs)

    def _run(self) -> None:
        try:
            self.run()
        except greenlet.GreenletExit:
            pass
        except BaseException as exc:  # noqa: BLE001  raised where the simulation runs
            self.error = exc
        self.is_over = True
        del self._call
        run = simulation()
        run.threads.remove(self)
        for thread in self._joining:
            run.wake(thread)
        self._joining = []

    def start(self) -> None:
        """Make it ready."""
        run = simulation()
        self._is_started = True
        if run.current is not None:
            self.greenlet.parent = run.current.greenlet.parent
        run.threads.append(self)
        run.ready.append(self)
        run.switch("start")

    def is_alive(self) -> bool:
        """Return whether it has started and not ended."""
        return self._is_started and not self.is_over

    def join(self, timeout: float | None = None) -> None:
        """Wait for its end."""
        run = simulation()
        until = None if timeout is None else run.now + timeout
        while not self.is_over:
            self._joining.append(run.current)
            if not run.block(until, "join"):
                if run.current in self._joining:
                    self._joining.remove(run.current)
                return


class _MainThread:
    name, ident, daemon = "MainThread", 0, False

    def __init__(self) -> None:
        self.locks = 0
        self.values: dict[int, dict[str, Any]] = {}


_MAIN = _MainThread()


def current_thread() -> Any:
    """Return the thread that runs."""
    return simulation().current or _MAIN


class Local:
    """Values of each thread."""

    def __getattr__(self, name: str) -> Any:
        try:
            return current_thread().values[id(self)][name]
        except KeyError:
            raise AttributeError(name) from None

    def __setattr__(self, name: str, value: object) -> None:
        current_thread().values.setdefault(id(self), {})[name] = value


class Lock:
    """A lock; each time it is taken or released another thread may go on."""

    _is_reentrant = False

    def __init__(self) -> None:
        self._owner: Any = None
        self._count = 0
        self._waiting: list[Any] = []

    def acquire(self, blocking: bool = True, timeout: float = -1) -> bool:
        """Take it; return False where it is not to be had, in time or at once."""
        run = simulation()
        run.switch("lock")
        me = current_thread()
        if self._is_reentrant and self._count and self._owner is me:
            self._count += 1
            return True
        until = None if timeout < 0 else run.now + timeout
        while self._count:
            if not blocking:
                return False
            self._waiting.append(run.current)
            if not run.block(until, "lock"):
                if run.current in self._waiting:
                    self._waiting.remove(run.current)
                if self._count:
                    return False
        self._has(me, 1)
        return True

    def release(self) -> None:
        """Give it up."""
        if not self._count:
            raise RuntimeError("release unlocked lock")
        if self._is_reentrant and self._owner is not current_thread():
            raise RuntimeError("cannot release un-acquired lock")
        self._count -= 1
        if not self._count:
            self._free()
            simulation().switch("unlock")

    def _has(self, thread: Any, count: int) -> None:
        self._owner, self._count = thread, count
        thread.locks += 1

    def _free(self) -> None:
        self._owner.locks -= 1
        self._owner, waiting, self._waiting = None, self._waiting, []
        for thread in waiting:
            simulation().wake(thread)

    def locked(self) -> bool:
        """Return whether it is taken."""
        return self._count > 0

    def is_mine(self) -> bool:
        """Return whether the thread that runs has it; a plain lock, whether any has."""
        return self._count > 0 and (not self._is_reentrant or self._owner is current_thread())

    def __enter__(self) -> bool:
        return self.acquire()

    def __exit__(self, *error: object) -> None:
        self.release()

    def put_down(self) -> int:
        """Release it for a wait, however often it was taken; return how often."""
        count, self._count = self._count, 0
        self._free()
        return count

    def take_up(self, count: int) -> None:
        """Take it as often again."""
        run = simulation()
        while self._count:
            self._waiting.append(run.current)
            run.block(None, "lock")
        self._has(current_thread(), count)


class RLock(Lock):
    """A lock that its owner may take again."""

    _is_reentrant = True


class Condition:
    """A condition of a lock."""

    def __init__(self, lock: Lock | None = None) -> None:
        self._lock = RLock() if lock is None else lock
        self._waiting: list[Any] = []
        self.acquire, self.release = self._lock.acquire, self._lock.release

    def __enter__(self) -> bool:
        return self._lock.acquire()

    def __exit__(self, *error: object) -> None:
        self._lock.release()

    def wait(self, timeout: float | None = None) -> bool:
        """Wait to be notified; return False where that took too long."""
        self._check()
        run = simulation()
        me = run.current
        self._waiting.append(me)
        count = self._lock.put_down()
        until = None if timeout is None else run.now + max(timeout, 0.0)
        is_notified = run.block(until, "wait")
        if not is_notified and me in self._waiting:
            self._waiting.remove(me)
        self._lock.take_up(count)
        return is_notified

    def wait_for(self, predicate: Callable[[], Any], timeout: float | None = None) -> Any:
        """Wait until ``predicate`` holds, and return what it returns."""
        run = simulation()
        until = None if timeout is None else run.now + timeout
        while not (result := predicate()):
            if until is not None and until <= run.now:
                break
            self.wait(None if until is None else until - run.now)
        return result

    def notify(self, n: int = 1) -> None:
        """Wake up to ``n`` threads that wait."""
        self._check()
        for thread in self._waiting[:n]:
            self._waiting.remove(thread)
            simulation().wake(thread)

    def notify_all(self) -> None:
        """Wake all that wait."""
        self.notify(len(self._waiting))

    def _check(self) -> None:
        if not self._lock.is_mine():
            raise RuntimeError("the lock is not held")


class Semaphore:
    """A semaphore."""

    def __init__(self, value: int = 1) -> None:
        self._changed, self._value = Condition(), value

    def acquire(self, blocking: bool = True, timeout: float | None = None) -> bool:
        """Take one; return False where there is none, in time or at once."""
        with self._changed:
            if not self._changed.wait_for(lambda: self._value, timeout if blocking else 0.0):
                return False
            self._value -= 1
            return True

    def release(self, n: int = 1) -> None:
        """Give ``n`` back."""
        with self._changed:
            self._value += n
            self._changed.notify(n)

    def __enter__(self) -> bool:
        return self.acquire()

    def __exit__(self, *error: object) -> None:
        self.release()


class Event:
    """A flag that threads wait for."""

    def __init__(self) -> None:
        self._changed, self._is_set = Condition(), False

    def is_set(self) -> bool:
        """Return whether it is set."""
        return self._is_set

    def set(self) -> None:
        """Set it, and wake all that wait."""
        with self._changed:
            self._is_set = True
            self._changed.notify_all()

    def clear(self) -> None:
        """Take it back."""
        self._is_set = False

    def wait(self, timeout: float | None = None) -> bool:
        """Wait until it is set; return whether it is."""
        with self._changed:
            return bool(self._changed.wait_for(lambda: self._is_set, timeout))


class SimpleQueue:
    """A queue without a limit."""

    def __class_getitem__(cls, item: object) -> types.GenericAlias:
        return types.GenericAlias(cls, item)

    def __init__(self) -> None:
        self._items: deque[Any] = deque()
        self._waiting: list[Any] = []

    def put(self, item: Any, block: bool = True, timeout: float | None = None) -> None:
        """Add ``item``."""
        self._items.append(item)
        if self._waiting:
            simulation().wake(self._waiting.pop(0))
        simulation().switch("put")

    def get(self, block: bool = True, timeout: float | None = None) -> Any:
        """Take the first item; raises queue.Empty where there is none, in time or at once."""
        run = simulation()
        run.switch("get")
        until = None if timeout is None else run.now + timeout
        while not self._items:
            if not block:
                raise queue.Empty
            me = run.current
            self._waiting.append(me)
            if not run.block(until, "get"):
                if me in self._waiting:
                    self._waiting.remove(me)
                if not self._items:  # else it came in the same moment
                    raise queue.Empty
        return self._items.popleft()

    def get_nowait(self) -> Any:
        """Take the first item; raises queue.Empty."""
        return self.get(block=False)

    put_nowait = put

    def qsize(self) -> int:
        """Return how many items there are."""
        return len(self._items)

    def empty(self) -> bool:
        """Return whether there is none."""
        return not self._items


class Executor(concurrent.futures.Executor):
    """A pool of at most so many threads, each of which starts where all others work."""

    _indices = itertools.count()

    def __init__(self, max_workers: int | None = None, thread_name_prefix: str = "") -> None:
        self._limit = max_workers or 4
        self._name = thread_name_prefix or f"pool-{next(self._indices)}"
        self._calls = SimpleQueue()
        self._threads: list[Thread] = []
        self._idle = 0
        self._is_over = False

    def submit(
        self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any
    ) -> "concurrent.futures.Future[Any]":
        """Call ``fn`` on a thread."""
        if self._is_over:
            raise RuntimeError("cannot schedule new futures after shutdown")
        future: concurrent.futures.Future[Any] = concurrent.futures.Future()
        is_short = self._idle <= self._calls.qsize() and len(self._threads) < self._limit
        self._calls.put((future, fn, args, kwargs))
        if is_short:
            thread = Thread(target=self._work, name=f"{self._name}-{len(self._threads)}")
            thread.start()
            self._threads.append(thread)
        return future

    def _work(self) -> None:
        while True:
            self._idle += 1
            call = self._calls.get()
            self._idle -= 1
            if call is None:
                return
            _answer(*call)
            del call

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """End the threads once they have done what was submitted."""
        self._is_over = True
        for _ in self._threads:
            self._calls.put(None)
        if wait:
            for thread in self._threads:
                thread.join()


def _answer(
    future: "concurrent.futures.Future[Any]",
    fn: Callable[..., Any],
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
) -> None:
    if not future.set_running_or_notify_cancel():
        return
    try:
        result = fn(*args, **kwargs)
    except BaseException as exc:  # noqa: BLE001  raised where the future is waited for
        future.set_exception(exc)
    else:
        future.set_result(result)


class _Replaced(types.ModuleType):
    """A module with some names replaced."""

    def __init__(self, module: types.ModuleType, **names: object) -> None:
        super().__init__(module.__name__)
        self.__dict__.update({**module.__dict__, **names})


def _now() -> float:
    return simulation().now


def modules() -> dict[str, types.ModuleType]:
    """Return the modules that stand in for those of the library, by name."""
    seconds = dict.fromkeys(("monotonic", "perf_counter", "thread_time", "process_time"), _now)
    nanoseconds = {f"{name}_ns": lambda: int(_now() * 1e9) for name in seconds}
    clock = {**seconds, **nanoseconds, "time": lambda: _now() + _EPOCH}
    return {
        "time": _Replaced(
            time,
            **clock,
            time_ns=lambda: int((_now() + _EPOCH) * 1e9),
            sleep=lambda seconds: simulation().sleep(seconds),
        ),
        "threading": _Replaced(
            threading,
            Thread=Thread,
            Lock=Lock,
            RLock=RLock,
            Condition=Condition,
            Semaphore=Semaphore,
            BoundedSemaphore=Semaphore,
            Event=Event,
            local=Local,
            current_thread=current_thread,
            get_ident=lambda: current_thread().ident,
            get_native_id=lambda: current_thread().ident,
            active_count=lambda: len(simulation().threads) + 1,
        ),
        "queue": _Replaced(queue, SimpleQueue=SimpleQueue),
        "concurrent.futures": _Replaced(concurrent.futures, ThreadPoolExecutor=Executor),
    }


#: What no module of the project may hold in a simulation: the library's own, by name.
REAL = {
    "threading.Thread": threading.Thread,
    "threading.Lock": threading.Lock,
    "threading.RLock": threading.RLock,
    "threading.Condition": threading.Condition,
    "threading.Semaphore": threading.Semaphore,
    "threading.Event": threading.Event,
    "threading.local": threading.local,
    "queue.SimpleQueue": queue.SimpleQueue,
    "queue.Queue": queue.Queue,
    "concurrent.futures.ThreadPoolExecutor": concurrent.futures.ThreadPoolExecutor,
    "time.monotonic": time.monotonic,
    "time.perf_counter": time.perf_counter,
    "time.sleep": time.sleep,
}

__all__ = ["REAL", "Executor", "Thread", "modules"]
