"""One contender's attempt: a fresh process, nothing of it in the page cache, so much memory and no more.

All measurements of servers' memory use ``attempt``: files dropped from the page cache, a cgroup with
the limit (or none), memory sampled from the start of the process to the last answer.
"""

import contextlib
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from benchmarks.load.messages import tensors_document
from benchmarks.machine.environment import Environment
from benchmarks.machine.room import Room, Rooms
from benchmarks.machine.sampling import MemorySample, Sampler, figures
from benchmarks.servers.client import first_output, post_json
from benchmarks.servers.contenders import ServerContender
from benchmarks.servers.served import NotReadyError, Served, running

Array = NDArray[np.float32]
_STOP_SECONDS = 10.0


@dataclass(frozen=True)
class ContenderTask:
    """What is asked of a contender; a request or a start that takes longer ends the attempt."""

    model: str
    input: str
    requests: Sequence[Array]
    ready_seconds: float = 120.0
    request_seconds: float = 120.0
    all_seconds: float = 3600.0
    """For all requests together."""


@dataclass
class Attempt:
    """What came of it. ``seconds`` that each answer took; the first one also reads libraries."""

    limit_bytes: int | None
    answers: list[Array] = field(default_factory=list)
    seconds: list[float] = field(default_factory=list)
    moments: list[float] = field(default_factory=list)
    """When each answer came, in the seconds of ``samples``."""
    failure: str = ""
    """Empty, "killed", "too slow" or what happened."""
    cached_bytes: int = 0
    """What could not be dropped from the page cache before."""
    figures: dict[str, int] = field(default_factory=dict)
    samples: list[MemorySample] = field(default_factory=list)

    @property
    def caveat(self) -> str:
        """Return what makes its memory look less than it is, or nothing."""
        if not self.cached_bytes:
            return ""
        left = f"{self.cached_bytes / 1e6:,.0f} MB of files stayed in the page cache"
        return f"{left} and may not be counted: are they on a disk (no tmpfs), and does nobody map them?"

    def warm_seconds(self) -> list[float]:
        """Return the seconds of all answers but the first."""
        return self.seconds[1:]


def attempt(
    contender: ServerContender,
    environment: Environment,
    task: ContenderTask,
    rooms: Rooms,
    limit: int | None = None,
) -> Attempt:
    """Serve in a fresh process, send requests until one fails."""
    result = Attempt(limit, cached_bytes=environment.drop(*contender.files))
    with rooms(f"layerstream-{contender.name}", limit) as room:
        command = room.inside(environment.private(contender.command))
        with Sampler(room.usage) as sampler, _failures(result, room):
            with running(
                command,
                *contender.port_flag,
                ready_seconds=task.ready_seconds,
                stop_seconds=_STOP_SECONDS,
            ) as served:
                _ask_all(result, served, task, sampler)
                end = sampler.now()
            # What it does while it ends is not looked at.
            del sampler.samples[sum(each.seconds <= end for each in sampler.samples) :]
        result.samples = sampler.samples
        result.figures = {**figures(room.peak_bytes, result.samples), "oom_kills": room.oom_kills}
    return result


def _ask_all(result: Attempt, served: Served, task: ContenderTask, sampler: Sampler) -> None:
    url = f"{served.base}/v2/models/{task.model}/infer"
    bodies = [json.dumps(tensors_document({task.input: array})).encode() for array in task.requests]
    ends = sampler.now() + task.all_seconds
    for body in bodies:
        began = sampler.now()
        if began >= ends:
            raise TimeoutError
        answer = post_json(url, body, min(task.request_seconds, ends - began))
        result.moments.append(sampler.now())
        result.seconds.append(result.moments[-1] - began)
        result.answers.append(first_output(answer))


@contextlib.contextmanager
def _failures(result: Attempt, room: Room) -> Iterator[None]:
    """Write down why the block ended early."""
    try:
        yield
    except TimeoutError:
        result.failure = "too slow"
    except NotReadyError as exc:
        result.failure = "too slow" if exc.slow else str(exc)
    except OSError as exc:
        result.failure = repr(exc)
    if result.failure and room.oom_kills:
        result.failure = "killed"
