"""A model in two partitions: same answers, two requests at once, and everything that ends a request."""

import asyncio
import threading
from collections.abc import AsyncIterator

import numpy as np
import pytest

from server.settings.settings import Settings
from tests.server.conftest import SettingsFactory
from tests.server.support import Faults, Gate, Packs, Service, Tensors, arrays, error, inputs_for, serving

BUDGET = 64 << 20


@pytest.fixture
async def service(settings: SettingsFactory) -> AsyncIterator[Service]:
    async with serving(settings(BUDGET, workers={"tiny": 2})) as started:
        yield started


async def test_answers_are_those_of_the_whole(service: Service, packs: Packs) -> None:
    given = inputs_for("tiny")
    response = await service.infer("tiny", given)
    print(response.status_code, response.text[:300])
    assert response.status_code == 200
