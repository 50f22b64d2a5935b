"""What lowering cannot do."""

from collections.abc import Sequence


class UnsuitedError(Exception):
    """No kernel does what a node asks for; the message says what that is."""


class NotCoveredError(Exception):
    """Kernels do not cover all nodes of a piece; ``operators`` has an "OpType: reason" for each."""

    def __init__(self, operators: Sequence[str]) -> None:
        super().__init__("; ".join(operators))
        self.operators = tuple(operators)
