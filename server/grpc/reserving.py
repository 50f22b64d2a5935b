"""What a call holds of request memory before its message has come, whose length gRPC does not say.

So a call holds what a request takes to the models that its connection used lately; a client mostly uses the
same ones. The first call of a connection holds what a request takes to the model with the largest tensors.
Once a message is here, its call holds what its model needs, and what it takes beyond that.
"""

from collections import OrderedDict
from collections.abc import Iterable

from models.packs.manifest import Manifest
from pipeline.budget.request_needs import SHORT_CODEC_BYTES, short_infer_bytes, tensor_bytes
from server.repository.entry import Entry
from server.repository.models import Models

#: There are two at a time: gRPC's own buffer and the message, or the message and its tensors.
COPIES = 2

_MAX_CONNECTIONS = 1024
_MAX_MODELS = 8


class RecentModels:
    """The models that each connection used lately, by name; of the last connections, a few each."""

    def __init__(self) -> None:
        self._names: OrderedDict[str, OrderedDict[str, None]] = OrderedDict()

    def of(self, connection: str) -> Iterable[str]:
        """Return the names; of a new connection none."""
        return self._names.get(connection, ())

    def note(self, connection: str, model: str) -> None:
        """Note that ``connection`` uses ``model``."""
        names = self._names.setdefault(connection, OrderedDict())
        self._names.move_to_end(connection)
        names[model] = None
        names.move_to_end(model)
        if len(names) > _MAX_MODELS:
            names.popitem(last=False)
        if len(self._names) > _MAX_CONNECTIONS:
            self._names.popitem(last=False)


def needed_bytes(models: Models, names: Iterable[str]) -> int:
    """Return what a request with raw tensors takes, to that model of ``names`` whose tensors are largest.

    Without such a model, and where one is not loaded now: to that of all models.
    """
    entries = [entry for name in names for entry in models.of(name)]
    if not entries or any(entry.pack is None for entry in entries):
        entries = list(models.values())
    return max(map(_entry_bytes, entries), default=0)


def _entry_bytes(entry: Entry) -> int:
    return 0 if entry.pack is None else message_bytes(entry.pack.manifest)


def message_bytes(manifest: Manifest) -> int:
    """Return the most that a message takes, or its tensors later: held at once, or holders would wait."""
    message = COPIES * tensor_bytes(manifest.inputs) + SHORT_CODEC_BYTES
    return max(message, short_infer_bytes(manifest))
