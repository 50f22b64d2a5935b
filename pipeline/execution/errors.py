"""How a sweep can end without an answer. Names of files and figures are in the messages."""


class EngineError(Exception):
    """The base of the errors of running a model."""


class CancelledError(EngineError):
    """The caller no longer needs the answer."""


class DeadlineError(EngineError):
    """The answer was not ready in time."""


class DrainError(EngineError):
    """A read did not end: its memory cannot be used again, the model must leave service."""


class EngineClosedError(EngineError):
    """The engine was closed by its owner; nothing is broken."""


class ArenaLostError(EngineError):
    """A read into the arena that engines share did not end: none of them can compute any more."""


class InputError(EngineError):
    """An input tensor is not what the model takes; the message names it."""
