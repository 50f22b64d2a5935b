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
    arena that engines share; None: it gets one of its own. It is closed here, also on an error. ``of``:
    where the model has several shapes, the memory of the first, which has room for each and is used for
    all, one at a time; nothing of it is closed here.

    Raises:
        DeviceError: ``device`` has not that much.
    """

    staging: Memory
    ring: Memory
    resident: Memory
    scratch: Memory
    lease: ArenaLease

    def __init__(
        self,
        program: Program,
        plan: Plan,
        device: Device,
        lease: ArenaLease | None = None,
        of: "EngineMemory | None" = None,
    ) -> None:
        self._populates = True
        self.lanes: list[LaneMemory] = []
        self._held: list[Memory | ArenaLease] = []
        if of is None:
            #: Where resident weights were read to, as offsets; those of all shapes.
            self.loaded: set[int] = set()
            self._allocate(plan, device, lease)
        else:
            self.loaded = of.loaded
            self.staging, self.ring, self.resident = of.staging, of.ring, of.resident
            self.scratch, self.lease = of.scratch, of.lease
        try:
            self.lanes = [
                LaneMemory(program, plan, self.space, number) for number in range(plan.choice.lanes)
            ]
        except BaseException:
            self.close()
            raise

    def _allocate(self, plan: Plan, device: Device, lease: ArenaLease | None) -> None:
        """Take what ``plan`` says, on an error nothing but the lease, which is closed."""
        planned = plan.memory
        copies = plan.architecture.copies
        slots = plan.architecture.slots or 1
        own_arena = planned["arena"] if lease is None else 0
        sizes: dict[Use, int] = {
            "staging": planned["staging"],
            "shared": 0 if copies else planned["ring"],
            "own": (planned["ring"] if copies else 0) + planned["resident"] + own_arena,
            "scratch": planned["scratch"],
        }
        if lease is not None:
            self._held.append(lease)

        def allocate(use: Use, n_bytes: int, slots: int = 1) -> Memory:
            memory = device.allocate(use, n_bytes, slots)
            self._held.append(memory)
            return memory

        try:
            device.check(sizes)
            self.staging = allocate("staging", planned["staging"], slots)
            self.ring = allocate("own" if copies else "shared", planned["ring"], slots)
            self.resident = allocate("own", planned["resident"])
            if lease is None:
                lease = OwnArena(device, planned["arena"])
                self._held.append(lease)
            shapes = (plan, *plan.others)
            reserved = max(reserved_scratch(shape.steps, shape.scratch_bytes) for shape in shapes)
            self.scratch = allocate("scratch", reserved)
            self.lease = lease
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
        self.loaded.clear()
        return any(discarded)

    def stop_populating(self) -> None:
        self._populates = False

    def close(self) -> None:
        for lane in self.lanes:
            lane.close()
        for resource in self._held:
            resource.close()
