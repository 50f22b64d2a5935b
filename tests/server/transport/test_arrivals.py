"""When bytes came, as the kernel says it, whenever and however the day's clock is set."""

import random
import socket
import struct
import time
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from server.errors import BusyError
from server.requests.asgi_client import AsgiClient
from server.transport.arrivals import TIMESTAMP, ArrivalTimes, stamp_arrivals
from server.transport.intake import Arrived, Intake, Refused
from tests.examples import examples, over
from tests.server.transport.test_intake import Timeouts
from tests.server.transport.wire import Wire, with_client


class Clocks:
    """Two clocks that stand still until a test lets time pass, or sets that of the day."""

    def __init__(self) -> None:
        self.now, self.ahead = 500.0, 1.7e9
        self.delays: list[float] = []

    def time(self) -> float:
        if self.delays:
            self.now += self.delays.pop()
        return self.now

    def day(self) -> float:
        return self.now + self.ahead

    def stamp(self) -> list[tuple[int, int, bytes]]:
        """Return what the kernel says of a byte that comes now."""
        seconds, rest = divmod(self.day(), 1.0)
        return [(socket.SOL_SOCKET, TIMESTAMP, struct.pack("@ll", int(seconds), int(rest * 1e9)))]


@pytest.fixture
def clocks() -> Clocks:
    return Clocks()


@pytest.fixture
def arrivals(clocks: Clocks) -> ArrivalTimes:
    return ArrivalTimes(clocks.time, clocks.day)


STEPS = (20.0, -20.0, 0.01, -0.01, 1.0, -1.0, 3600.0, -3600.0, -1.7e9, 86400.0 * 365 * 20)


@over("step", STEPS)
@over("waits, stepped_after", [(0.5, 0.0), (0.5, 0.1), (0.5, 0.5), (30.0, 29.0), (0.0, 0.0)])
@over("compared", [False, True])
def test_a_byte_that_waits_while_the_clock_steps_is_neither_older_nor_younger(
    step: float, waits: float, stepped_after: float, compared: bool
) -> None:
    clocks = Clocks()
    arrivals = ArrivalTimes(clocks.time, clocks.day)
    clocks.now += 100.0
    arrivals.compare()
    came_at, stamp = clocks.now, clocks.stamp()
    clocks.now += stepped_after
    clocks.ahead += step
    if compared:
        arrivals.compare()
    clocks.now += waits - stepped_after
    assert arrivals.stamped_at(stamp) in {None, came_at}


@over("step", STEPS)
def test_what_comes_a_while_after_a_step_has_its_time(step: float) -> None:
    clocks = Clocks()
    arrivals = ArrivalTimes(clocks.time, clocks.day)
    clocks.now += 100.0
    clocks.ahead += step
    arrivals.compare()
    clocks.now += 61.0  # a backward step shows the same times again
    came_at, stamp = clocks.now, clocks.stamp()
    clocks.now += 0.25
    assert arrivals.stamped_at(stamp) == pytest.approx(came_at, abs=1e-3)


@given(st.integers(0, 1 << 40))
@examples(few=60, many=2000)
def test_a_time_is_right_or_unknown(seed: int) -> None:
    """Bytes come and are read at any moment, and the day's clock is set at any, once a quarter second."""
    rng, clocks = random.Random(seed), Clocks()
    arrivals, waiting = ArrivalTimes(clocks.time, clocks.day), list[tuple[float, Any]]()
    for _ in range(rng.choice((20, 200))):
        steps_at = rng.random() * 0.25 if rng.random() < 0.2 else 1.0
        moments = sorted([*(rng.random() * 0.25 for _ in range(rng.randrange(4))), steps_at])
        started = clocks.now
        for moment in moments:
            clocks.now = started + min(moment, 0.25)
            if moment == steps_at:
                clocks.ahead += rng.choice((*STEPS, 0.0)) if moment < 1.0 else 0.0
            elif waiting and rng.random() < 0.5:
                came_at, stamp = waiting.pop(rng.randrange(len(waiting)))
                arrived_at = arrivals.stamped_at(stamp)
                assert arrived_at is None or abs(arrived_at - came_at) <= 2e-3
            else:
                waiting.append((clocks.now, clocks.stamp()))
        clocks.now = started + 0.25
        arrivals.compare()


class Waiting(socket.socket):
    """A socket in which a byte waits that came when ``stamp`` says."""

    stamp: list[tuple[int, int, bytes]]

    def recvmsg(self, *_: Any) -> Any:
        return b"G", self.stamp, 0, None


class Deadlines(Timeouts):
    """Each request has a second."""

    def deadline(self, request: Arrived, is_free: bool) -> float | None:
        return request.arrived_at + 1.0

    def refusal(self, request: Arrived, error: BusyError) -> Refused:
        raise AssertionError(f"refused: {error}")


@over("step", STEPS)
@over("stepped_after", [-0.1, 0.0, 0.15, 0.3, 0.31])
async def test_requests_are_as_old_as_they_are_while_the_clock_is_set(
    step: float, stepped_after: float
) -> None:
    """Many come at once and wait for 0.3 s: none is refused, and none seems to have taken longer."""
    clocks, ages = Clocks(), list[float]()
    arrivals = ArrivalTimes(clocks.time, clocks.day)

    async def answer(client: AsgiClient) -> None:
        assert client.arrived_at is not None
        ages.append(clocks.now - client.arrived_at)
        client.start(200, [(b"content-length", b"0")])
        await client.send(b"")

    wires = [Wire(with_client(answer)) for _ in range(8)]
    intake = Intake(Deadlines(), wires[0].connection.loop, clocks.time)
    clocks.now += 100.0
    came_at = clocks.now

    def lets(seconds: float) -> None:
        """Let time pass until ``seconds`` after they came."""
        if clocks.now < came_at + stepped_after <= came_at + seconds:
            clocks.now, clocks.ahead = came_at + stepped_after, clocks.ahead + step
        clocks.now = came_at + seconds

    clocks.now -= 0.2
    lets(0.0)
    stamp = clocks.stamp()
    lets(0.3)
    for wire in wires:
        connection = wire.connection
        connection._intake, connection._clock = intake, clocks.time
        with Waiting() as sock:
            sock.stamp = stamp
            connection._arrivals, connection._visitor.sock = arrivals, sock
            connection.get_buffer(-1)
        lets(0.32)
        await wire.sends(b"POST /x HTTP/1.1\r\nhost: x\r\ncontent-length: 0\r\n\r\n")
    assert len(ages) == len(wires)
    assert all(0.0 <= age <= 0.32 + 1e-3 for age in ages)


def test_a_clock_that_nobody_sets_is_always_believed(
    clocks: Clocks, arrivals: ArrivalTimes
) -> None:
    for waits in (0.0, 1e-6, 0.3, 40.0):
        clocks.now += 1.0
        came_at, stamp = clocks.now, clocks.stamp()
        clocks.now += waits
        assert arrivals.stamped_at(stamp) == pytest.approx(came_at, abs=1e-6)


def test_a_pause_between_two_readings_of_clocks_is_no_step(
    clocks: Clocks, arrivals: ArrivalTimes
) -> None:
    clocks.now += 1.0
    came_at, stamp = clocks.now, clocks.stamp()
    clocks.delays = [0.0, 0.0, 0.05, 0.0]  # the first comparison is interrupted
    assert arrivals.stamped_at(stamp) == pytest.approx(came_at, abs=1e-6)
    clocks.delays = [0.05] * 6
    assert arrivals.stamped_at(stamp) is None
    assert arrivals.stamped_at(stamp) == pytest.approx(came_at, abs=1e-6)


@over("ancillary", [[], [(socket.SOL_SOCKET, 99, b"x" * 16)], [(1, TIMESTAMP, b"x")]])
def test_without_a_stamp_there_is_no_time(ancillary: list[tuple[int, int, bytes]]) -> None:
    assert ArrivalTimes().stamped_at(ancillary) is None


def is_stamped(sock: socket.socket) -> bool:
    try:
        return bool(sock.getsockopt(socket.SOL_SOCKET, TIMESTAMP))
    except OSError:
        return False


def test_the_kernel_says_when_the_first_byte_came() -> None:
    arrivals = ArrivalTimes()
    with (
        socket.create_server(("127.0.0.1", 0)) as listener,
        socket.create_connection(listener.getsockname()) as client,
        listener.accept()[0] as server,
    ):
        server.setblocking(False)
        stamp_arrivals(server)
        if not is_stamped(server):
            pytest.skip("the kernel has no time stamps of sockets")  # that which qemu makes up
        assert arrivals.came_at(server) is None
        server.settimeout(10.0)
        arrived_at, before = None, 0.0
        for _ in range(1000):  # the kernel begins with it a moment after it is asked to
            before = time.monotonic()
            client.sendall(b"x")
            assert server.recv(1, socket.MSG_PEEK) == b"x"
            if (arrived_at := arrivals.came_at(server)) is not None:
                break
            server.recv(1)
        assert arrived_at is not None
        # Two clocks are read one after the other.
        assert before - 0.01 <= arrived_at <= time.monotonic()
        server.close()
        assert arrivals.came_at(server) is None


def test_where_the_kernel_notes_nothing_it_says_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Qemu has no such option."""
    monkeypatch.setattr("server.transport.arrivals.TIMESTAMP", 9999)
    with socket.socket() as sock:
        stamp_arrivals(sock)
        assert ArrivalTimes().came_at(sock) is None


def test_of_a_unix_socket_it_says_nothing() -> None:
    one, other = socket.socketpair()
    with one, other:
        stamp_arrivals(one)
        other.sendall(b"x")
        assert ArrivalTimes().came_at(one) is None
        assert one.recv(10) == b"x"
