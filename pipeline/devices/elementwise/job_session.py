"""A session that does what its thread was handed: how ONNX Runtime's threads do what is ours."""

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import numpy as np

from pipeline.devices.elementwise.messages import model, node
from pipeline.devices.elementwise.operator_node import DOMAIN, VERSION

#: A model with the one operator that does what its thread was handed (kernels/custom_operator.c).
JOB = model([node("Job", DOMAIN, ["x"], ["y"])], [("x", (1,))], [("y", (1,))], [(DOMAIN, VERSION)])
#: What its session and its binding take of the heap. Measured 27 KB.
JOB_BYTES = 36 << 10

#: Loads a model and binds it to inputs and outputs; what is returned raises KernelError.
Bind = Callable[[bytes, Sequence[Any], Sequence[Any]], Callable[[], None]]

_Given = TypeVar("_Given")


class JobSession:
    """Does the jobs of one model by ``bind``, one at a time.

    A model has one of its own, since a binding is for one sweep at a time.
    """

    def __init__(self, bind: Bind) -> None:
        self._bind = bind
        self._ports = np.zeros((2, 1), np.float32)  # the binding has their addresses only
        self._job: Callable[[], None] | None = None

    def prepare(self) -> None:
        """Load the session: when what needs it is bound, so that no first request takes memory."""
        if self._job is None:
            given, made = self._ports
            self._job = self._bind(JOB, [given], [made])

    def run(self, hand_over: Callable[[_Given | None], None], given: _Given) -> None:
        """Do what ``hand_over`` hands this thread of ``given``, and takes back with None.

        Raises:
            KernelError: ONNX Runtime fails.
        """
        assert self._job is not None, "what runs was prepared"
        hand_over(given)
        try:
            self._job()
        finally:
            hand_over(None)
