"""What reading took: figures of a pool and of each of its clients, since they began."""

from dataclasses import dataclass

from loader.pool.job import Outcome


@dataclass(frozen=True)
class ReadFigures:
    """``n_bytes`` and times of the reads that ended well or not; of failed ones no bytes.

    ``seconds``: from a read's start to its verified bytes, added up, so several at once count each.
    ``cpu_seconds``: user and system time of reading, without checksums.
    """

    n_bytes: int = 0
    reads: int = 0
    failures: int = 0
    seconds: float = 0.0
    cpu_seconds: float = 0.0

    @property
    def cpu_seconds_per_gb(self) -> float | None:
        """CPU seconds per 10^9 bytes; None before the first read."""
        return self.cpu_seconds / (self.n_bytes / 1e9) if self.n_bytes else None


@dataclass
class ReadTally:
    """Adds up the figures of reads; changed in place, since that costs less than a read should."""

    n_bytes: int = 0
    reads: int = 0
    failures: int = 0
    seconds: float = 0.0
    cpu_seconds: float = 0.0

    def add(self, n_bytes: int, outcome: Outcome) -> None:
        """Count one read of ``n_bytes``."""
        self.reads += 1
        if outcome.error is None:
            self.n_bytes += n_bytes
        else:
            self.failures += 1
        self.seconds += outcome.seconds
        self.cpu_seconds += outcome.cpu_seconds

    def figures(self) -> ReadFigures:
        return ReadFigures(self.n_bytes, self.reads, self.failures, self.seconds, self.cpu_seconds)


@dataclass(frozen=True)
class ClientStatistics:
    """``waiting`` in line and ``in_flight`` now; ``stuck``: a read has not ended for too long."""

    name: str
    figures: ReadFigures
    waiting: int
    in_flight: int
    stuck: bool


@dataclass(frozen=True)
class PoolStatistics:
    """``figures`` also of clients that have gone.

    ``kind``: how it reads, "preadv". ``hung``: reads that have not ended for too long. ``wake_ups``: how
    often a thread of the pool woke; an idle pool adds none.
    """

    kind: str
    figures: ReadFigures
    clients: tuple[ClientStatistics, ...]
    in_flight: int
    hung: int
    wake_ups: int
