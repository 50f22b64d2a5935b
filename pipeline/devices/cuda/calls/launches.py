"""How many threads a kernel gets."""

from pipeline.devices.cuda.call import Argument, Call

_THREADS = 256
#: Indices of elements are 32-bit, and the last block may reach past the last element.
MAX_ELEMENTS = 2**31 - _THREADS


def threads_for(length: int) -> int:
    """Return threads of a block that works on ``length`` numbers together: a power of two, 32 to 256."""
    return min(max(1 << (length - 1).bit_length(), 32), _THREADS)


def per_element(module: str, function: str, count: int, *arguments: Argument) -> Call:
    """Return a launch with one thread for each of ``count`` elements.

    Raises:
        ValueError: there are none, or more than kernels can count.
    """
    if not 0 < count <= MAX_ELEMENTS:
        raise ValueError(f"{count} elements")
    return Call(module, function, (-(-count // _THREADS), 1, 1), _THREADS, arguments)


def per_group(module: str, function: str, groups: int, length: int, *arguments: Argument) -> Call:
    """Return a launch with one block for each of ``groups`` groups of ``length`` numbers.

    Raises:
        ValueError: there are none, or more than kernels can count.
    """
    if not 0 < groups * length <= MAX_ELEMENTS:
        raise ValueError(f"{groups} groups of {length} elements")
    return Call(module, function, (groups, 1, 1), threads_for(length), arguments)
