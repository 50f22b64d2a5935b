"""A model that was unloaded leaves a few words, and nothing of its pack."""

import gc
import weakref

from pipeline.fitting.remembered import forget
from tests.server.support import Service, inputs_for


async def test_nothing_of_a_pack_is_left(service: Service) -> None:
    assert (await service.infer("pair", inputs_for("pair"))).status_code == 200
    entry, pack = service.context.repository.get("pair")
    left = weakref.ref(pack.manifest)
    version = pack.version
    del pack
    await service.context.repository.unload("pair")
    await service.context.repository.close()
    forget()
    gc.collect()
    assert left() is None
    assert (entry.version, entry.pack) == (version, None)
    assert entry.weight_bytes > 0
