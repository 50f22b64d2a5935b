"""What the native library takes for a program of operators on elements, where it runs it in one pass."""

from models.packs.records.pieces import ElementProgram
from pipeline.devices.elementwise.job_session import JOB_BYTES
from pipeline.devices.elementwise.operator_node import Shape, chain_model, strides_of
from pipeline.devices.elementwise.programs import WORTH_SHARING, native_program
from pipeline.program.decided import NativeChain

# What a launch of the library takes beside arrays: its structures, and what Python has around them.
# Measured 1.1 KB.
_BOUND_BYTES = 2 << 10
# A session with one chain, beside its message. Measured 24 to 27 KB.
_SESSION_BYTES = 34 << 10


def decided(
    program: ElementProgram, shapes: tuple[Shape, ...], are_sessions: bool
) -> NativeChain | None:
    """Return what is decided of ``program`` on arrays of ``shapes``: what it reads, then what it makes.

    ``are_sessions``: ONNX Runtime's threads compute long chains, and those in one launch with others. None:
    the library does not run it.
    """
    native = native_program(program)
    if native is None:
        return None
    made = shapes[native.n_inputs :]
    if made and any(strides_of(shape, made[0]) is None for shape in shapes):
        return None
    model = chain_model(native, shapes) if made and are_sessions else None
    return NativeChain(
        bound_bytes=_BOUND_BYTES,
        shared_elements=WORTH_SHARING if are_sessions else None,
        together_bytes=JOB_BYTES if are_sessions else 0,
        node_bytes=None if model is None else _SESSION_BYTES + 2 * len(model),
    )
