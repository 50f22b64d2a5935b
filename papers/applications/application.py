"""A CNN-based application (seed 000, Section 2.3) and what its memory costs (Eq. 1 to 4).

CNNs, the partitions that they are divided into, which partitions run at once, and in which steps the layers
of each are executed. Sizes of buffers are elements, memory is bytes.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from models.errors import ModelError
from papers.cnn.layers import Cnn, Edge


class ApplicationError(ModelError):
    """CNNs, partitions or schedules that are no application, in one line that names what is wrong."""


#: The layers of a partition, by number: at each step one or several are executed.
Schedule = tuple[tuple[int, ...], ...]


@dataclass(frozen=True, slots=True)
class Partition:
    """Layers of one CNN that run on one processor. ``cnn``: its number; ``schedule`` has each layer once.

    The partitions of a CNN stand in the order in which a frame passes them.
    """

    cnn: int
    schedule: Schedule

    @property
    def layers(self) -> tuple[int, ...]:
        """Its layers, in the order in which they run."""
        return tuple(layer for step in self.schedule for layer in step)


@dataclass(frozen=True, slots=True)
class Held:
    """What a buffer holds: edge number ``edge`` of CNN ``cnn``.

    ``copy``: 0, or 1, 2, ... of an edge that several frames are on at once, between pipelined partitions.
    """

    cnn: int
    edge: int
    copy: int = 0


@dataclass(frozen=True, slots=True)
class CnnBuffer:
    """A CNN buffer B_k: so many elements, and the edges that use it, one after the other."""

    size: int
    edges: tuple[Held, ...]


@dataclass(frozen=True)
class Application:
    """The tuple ({CNN^n}, P, J, {schedule_p}) of Section 2.3; its buffers are what planners make of it.

    ``together``: J, sets of partitions, by number, that run at once. ``element_bytes`` and
    ``parameter_bytes`` are data_bytes and par_bytes of Eq. 2 and 3.

    Raises:
        ApplicationError: a CNN is there twice, or none is; partitions do not cover a CNN, or a layer runs
            before what it reads; some partitions of a CNN run at once and others of it do not.
    """

    name: str
    cnns: tuple[Cnn, ...]
    partitions: tuple[Partition, ...]
    together: tuple[frozenset[int], ...] = ()
    element_bytes: int = 4
    parameter_bytes: int = 4

    def __post_init__(self) -> None:
        if not self.cnns:
            raise ApplicationError(f"{self.name}: an application of no model")
        names = [cnn.name for cnn in self.cnns]
        if len(set(names)) < len(names):
            twice = next(name for name in names if names.count(name) > 1)
            raise ApplicationError(f"{self.name}: model {twice!r} is there twice")
        for number in range(len(self.cnns)):
            self._check_covered(number)
            self._check_order(number)
        for group in self.together:
            wrong = [number for number in group if not 0 <= number < len(self.partitions)]
            if wrong:
                raise ApplicationError(f"{self.name}: there is no partition {wrong[0]}")
        for number in range(len(self.cnns)):
            self._check_pipeline(number)

    def _check_covered(self, number: int) -> None:
        cnn, seen = self.cnns[number], [0] * len(self.cnns[number].layers)
        for partition in self.of_cnn(number):
            layers = self.partitions[partition].layers
            if not layers:
                raise ApplicationError(f"{cnn.name}: a partition has no layers")
            for layer in layers:
                if not 0 <= layer < len(seen):
                    raise ApplicationError(f"{cnn.name}: there is no layer {layer}")
                seen[layer] += 1
        wrong = next((layer for layer, count in enumerate(seen) if count != 1), None)
        if wrong is not None:
            said = "in two partitions" if seen[wrong] else "in no partition"
            raise ApplicationError(f"{cnn.name}: layer {cnn.layers[wrong].name!r} is {said}")

    def _check_order(self, number: int) -> None:
        cnn = self.cnns[number]
        order = [layer for own in self.of_cnn(number) for layer in self.partitions[own].layers]
        place = {layer: position for position, layer in enumerate(order)}
        for edge in cnn.edges:
            if place[edge.source] > place[edge.target]:
                source, target = cnn.layers[edge.source].name, cnn.layers[edge.target].name
                raise ApplicationError(
                    f"{cnn.name}: {target!r} runs before {source!r}, which it reads"
                )

    def _check_pipeline(self, number: int) -> None:
        own = self.of_cnn(number)
        at_once = [self.parallel(a, b) for a in own for b in own if a < b]
        if any(at_once) and not all(at_once):
            raise ApplicationError(
                f"{self.cnns[number].name}: some of its partitions run at once and others do not"
            )

    def of_cnn(self, number: int) -> list[int]:
        """Return the partitions of a CNN, in their order."""
        return [i for i, partition in enumerate(self.partitions) if partition.cnn == number]

    def first_step(self, cnn: int, layer: int) -> tuple[int, int]:
        """Return partition and step in which a layer is executed."""
        return self._steps[cnn][layer]

    @cached_property
    def _steps(self) -> tuple[dict[int, tuple[int, int]], ...]:
        found: tuple[dict[int, tuple[int, int]], ...] = tuple({} for _ in self.cnns)
        for number, partition in enumerate(self.partitions):
            for step, layers in enumerate(partition.schedule):
                found[partition.cnn].update((layer, (number, step)) for layer in layers)
        return found

    def parallel(self, one: int, other: int) -> bool:
        """Return whether two partitions run at once: {P_m, P_x} in some J_r."""
        return one != other and any({one, other} <= group for group in self.together)

    def is_pipelined(self, cnn: int) -> bool:
        """Return whether the partitions of a CNN work on consecutive frames at once."""
        own = self.of_cnn(cnn)
        return len(own) > 1 and self.parallel(own[0], own[1])

    def edge(self, held: Held) -> Edge:
        return self.cnns[held.cnn].edges[held.edge]

    def elements(self, held: Held) -> int:
        """Return |e_ij.data|: of the whole tensor."""
        source = self.cnns[held.cnn].layers[self.edge(held).source].output
        return source.height * self.row_elements(held)

    def row_elements(self, held: Held) -> int:
        """Return the elements of one row of an edge."""
        edge = self.edge(held)
        source = self.cnns[held.cnn].layers[edge.source].output
        return source.width * (edge.channels or source.channels)

    def label(self, held: Held) -> str:
        """Return how an edge is called: ``CNN2:l2-l3(1)``."""
        cnn, edge = self.cnns[held.cnn], self.edge(held)
        names = f"{cnn.layers[edge.source].name}-{cnn.layers[edge.target].name}"
        return f"{cnn.name}:{names}" + (f"({held.copy})" if held.copy else "")

    @cached_property
    def held(self) -> tuple[Held, ...]:
        """What needs buffers, partition by partition (P_m.E): every edge, double ones more than once.

        An edge from one pipelined partition to the next holds two frames, one that is written and one that
        is read; past d partitions it holds d + 1. Copy c stands with partition c - 1 after the source's.
        """
        buffers: list[tuple[int, int, int, Held]] = []
        for number, cnn in enumerate(self.cnns):
            pipelined = self.is_pipelined(number)
            order = {partition: place for place, partition in enumerate(self.of_cnn(number))}
            own = self.of_cnn(number)
            for index, edge in enumerate(cnn.edges):
                start = order[self.first_step(number, edge.source)[0]]
                end = order[self.first_step(number, edge.target)[0]]
                copies = end - start + 1 if pipelined and end > start else 0
                buffers += [
                    (own[start + copy - 1], *_key(edge), Held(number, index, copy))
                    for copy in range(1, copies + 1)
                ]
                if not copies:
                    buffers.append((own[start], *_key(edge), Held(number, index)))
        return tuple(item[-1] for item in sorted(buffers, key=lambda item: item[:-1]))

    @property
    def parameter_memory(self) -> int:
        """M^par, bytes (Eq. 2)."""
        layers = (layer for cnn in self.cnns for layer in cnn.layers)
        return sum(layer.parameters for layer in layers) * self.parameter_bytes

    def buffer_memory(self, buffers: Iterable[CnnBuffer]) -> int:
        """M^buf, bytes (Eq. 3)."""
        return sum(buffer.size for buffer in buffers) * self.element_bytes

    def memory(self, buffers: Iterable[CnnBuffer]) -> int:
        """M, bytes (Eq. 1)."""
        return self.parameter_memory + self.buffer_memory(buffers)

    def with_schedules(self, schedules: Sequence[Schedule]) -> "Application":
        """Return the same with other schedules, one a partition."""
        pairs = zip(self.partitions, schedules, strict=True)
        return replace(
            self, partitions=tuple(replace(item, schedule=steps) for item, steps in pairs)
        )


def _key(edge: Edge) -> tuple[int, int]:
    return edge.source, edge.target


def one_by_one(cnn: int, layers: Iterable[int]) -> Partition:
    """Return a partition that executes its layers one after the other."""
    return Partition(cnn, tuple((layer,) for layer in layers))


def whole(name: str, cnns: Sequence[Cnn]) -> Application:
    """Return the application of ``cnns``, each one partition, that run one CNN at a time."""
    partitions = tuple(one_by_one(i, range(len(cnn.layers))) for i, cnn in enumerate(cnns))
    return Application(name, tuple(cnns), partitions)


def naive(application: Application) -> tuple[CnnBuffer, ...]:
    """Return B^naive: a buffer of its own for every edge (Section 2.3, Table 1)."""
    return tuple(CnnBuffer(application.elements(held), (held,)) for held in application.held)
