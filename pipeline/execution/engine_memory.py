"""The memory of one engine: ring, resident weights and arena, which lanes share or divide.

Pointers stay the same from the first sweep to the last.
"""

from pipeline.devices.base import Device
from pipeline.devices.device_memory import Memory, Use
from pipeline.execution.lane import LaneMemory
from pipeline.execution.leases import ArenaLease, OwnArena
from pipeline.planning.plan import Plan, Space
from pipeline.program.program import Program
from pipeline.program.steps import reserved_scratch

# Taken from the system at a time: a few huge pages.
_STRETCH_BYTES = 8 << 20


class EngineMemory:
    """Holds what ``plan`` says for the model of ``program``, in ``lanes`` what each request needs.

    The disk writes to ``staging`` where weights are copied before use, else to ``ring``. ``lease``: of an
    arena that engines share; None: it gets one of its own. It is closed here, also on an error.

    Raises:
        DeviceError: ``device`` has not that much.
    """

    def __init__(
        self, program: Program, plan: Plan, device: Device, lease: ArenaLease | None = None
    ) -> None:
        self._plan = plan
        copies = plan.architecture.copies
        slots = plan.architecture.slots or 1
        own_arena = plan.arena_bytes if lease is None else 0
        sizes: dict[Use, int] = {
            "staging": plan.staging_bytes,
            "shared": 0 if copies else plan.ring_bytes,
            "own": (plan.ring_bytes if copies else 0) + plan.resident_bytes + own_arena,
            "scratch": plan.scratch_bytes,
        }
        self._populates = True
        self.lanes: list[LaneMemory] = []
        self._held: list[Memory | ArenaLease] = [] if lease is None else [lease]

        def allocate(use: Use, n_bytes: int, slots: int = 1) -> Memory:
            memory = device.allocate(use, n_bytes, slots)
            self._held.append(memory)
            return memory

        try:
            device.check(sizes)
            self.staging = allocate("staging", plan.staging_bytes, slots)
            self.ring = allocate("own" if copies else "shared", plan.ring_bytes, slots)
            self.resident = allocate("own", plan.resident_bytes)
            if lease is None:
                lease = OwnArena(device, plan.arena_bytes)
                self._held.append(lease)
            reserved = reserved_scratch(plan.steps, plan.scratch_bytes)
            self.scratch = allocate("scratch", reserved)
            self.lease = lease
            self.lanes = [
                LaneMemory(program, plan, self.space, number) for number in range(plan.choice.lanes)
            ]
        except BaseException:
            self.close()
            raise

    def space(self, space: Space) -> Memory:
        """Return the memory of ``space``; of arenas that of the first lane is where it begins."""
        match space:
            case "staging":
                return self.staging
            case "ring":
                return self.ring
            case "resident":
                return self.resident
            case "arena":
                return self.lease.memory
            case "request" | "edge":
                raise AssertionError("no memory of an engine")

    def n_bytes(self) -> dict[str, int]:
        """Return what was allocated, by name; of a shared arena the part that this engine uses."""
        return {
            "staging": self.staging.n_bytes,
            "ring": self.ring.n_bytes,
            "resident": self.resident.n_bytes,
            "arena": self.lease.memory.n_bytes,
        }

    def huge_page_bytes(self) -> int:
        """Return how much of the memory for weights lies on huge pages, once it was touched."""
        weights = (self.staging, self.ring, self.resident)
        return sum(memory.huge_page_bytes() for memory in weights)

    def populate(self) -> None:
        """Take memory from the system until all is there, or until ``stop_populating``.

        A first sweep that touches new memory waits for each page: the system clears it.
        """
        for memory in (self.staging, self.ring, self.lease.memory):
            for start in range(0, memory.n_bytes, _STRETCH_BYTES):
                if not self._populates:
                    return
                memory.populate(start, _STRETCH_BYTES)

    def discard(self) -> bool:
        """Give all pages back to the system but those of a shared arena; return whether any went.

        Pointers stay; the resident weights have to be read again before the next inference.
        """
        memories = [self.staging, self.ring, self.resident, self.scratch]
        if isinstance(self.lease, OwnArena):
            memories.append(self.lease.memory)
        discarded = [memory.discard() for memory in memories]
        return any(discarded)

    def stop_populating(self) -> None:
        self._populates = False

    def close(self) -> None:
        for lane in self.lanes:
            lane.close()
        for resource in self._held:
            resource.close()
