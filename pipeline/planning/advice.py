"""What a user can do about a plan that takes too much."""

from pipeline.planning.words import sized
from pipeline.program.program import Program
from pipeline.schedule.architectures import Architecture


def chunk_advice(program: Program, architecture: Architecture) -> str:
    """Return how much a smaller --chunk would help, to end a message with; empty where it changes nothing.

    It does nothing for weights that all stay in memory, and for layers that cannot be cut any finer.
    """
    least = program.least_chunk_bytes
    if architecture.resident or least >= program.largest_chunk_bytes:
        return ""
    return f", or compile with a smaller --chunk: the largest one can have {sized(least)}"
