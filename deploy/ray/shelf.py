"""Models that are open in one budget of memory: as many as it holds, the least recently used go first.

Those that are open are planned together, as a service plans them: the first one would otherwise take all
that it can use. So opening one more closes the others for a moment. Each is opened again in less memory, or
is the one that goes; requests that run are answered before, and those that come wait for their turn.
"""

import asyncio
from collections import OrderedDict
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

from layerstream import Budget, Model, ModelError, PlanError, RefusedError
from pipeline.execution.shielded import run_to_completion


class Shelf:
    """``packs``: by name, those that are most wanted first; as many as fit are open from the start.

    Raises:
        RefusedError: not even the first one fits; the message says what would do. ModelError: one is no
            pack, or one for another machine. ValueError: no size.
    """

    def __init__(self, budget: int | str, packs: Mapping[str, Path]) -> None:
        self._budget = Budget(budget)
        self._packs = packs
        self._models: OrderedDict[str, Model] = OrderedDict()  # the least recently used first
        self._failed: dict[str, Exception] = {}
        self._users = 0
        self._turn = asyncio.Lock()
        self._unused = asyncio.Event()
        self._unused.set()
        try:
            self._open(list(packs)[::-1])
        except BaseException:
            self._budget.close()
            raise

    @property
    def names(self) -> Sequence[str]:
        """The models that are open, the least recently used first."""
        return tuple(self._models)

    @asynccontextmanager
    async def model(self, name: str) -> AsyncIterator[Model]:
        """Yield the model called ``name``, which is opened if it is not; it stays so long.

        Raises:
            KeyError: there is none. RefusedError, ModelError, PlanError, LoaderError: it cannot be opened.
        """
        async with self._turn:  # in line: those that come later keep no change from its turn
            if name in self._failed:
                raise self._failed[name]
            if name not in self._packs:
                raise KeyError(name)
            if name not in self._models:
                await self._unused.wait()
                await run_to_completion(asyncio.to_thread(self._open, [*self._models, name]))
            self._models.move_to_end(name)
            model = self._models[name]
            self._users += 1
            self._unused.clear()
        try:
            yield model
        finally:
            self._users -= 1
            if not self._users:
                self._unused.set()

    def close(self) -> None:
        """Close all of them."""
        self._budget.close()

    def _open(self, names: list[str]) -> None:
        """Have the last ones of ``names`` open, as many as fit, and no others; blocks.

        If the last one cannot be opened it is not tried again: others would lose their places each time.
        """
        for model in self._models.values():
            model.close()
        self._models.clear()
        while True:
            try:
                opened = self._budget.open(*(self._packs[name] for name in names))
                self._models.update(zip(names, opened, strict=True))
                return
            except RefusedError as exc:
                if len(names) == 1:
                    self._failed[names[0]] = exc
                    raise
                del names[0]
            except (ModelError, PlanError) as exc:
                self._failed[names[-1]] = exc
                raise
