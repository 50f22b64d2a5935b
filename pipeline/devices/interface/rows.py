"""Rows of the tables: what a header of C says, and structures of ctypes by the same rows."""

import ctypes
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple


class Constants(NamedTuple):
    """Integers by name: limits, and what both sides count with."""

    comment: str
    values: Mapping[str, int]


class Texts(NamedTuple):
    """Strings by name, ASCII."""

    comment: str
    texts: Mapping[str, str]


class KernelList(NamedTuple):
    """Kernels in order, the macro ``name`` of a macro; ``total``: the constant that counts them."""

    comment: str
    name: str
    total: str
    kernels: Sequence[str]


class Enumeration(NamedTuple):
    """``names`` that stand for 0, 1, ...; ``total`` is behind them, empty: nothing is."""

    comment: str
    name: str
    names: Sequence[str]
    total: str


class Members(NamedTuple):
    """Members of a structure that have one type: ``names``, apart by spaces, in their order.

    ``type``: as C has it, of an array with its length: ``int32_t[MAX_JOINED]``.
    """

    type: str
    names: str
    comment: str


class Structure(NamedTuple):
    """A structure; C and ctypes put the same padding between its members, which C asserts."""

    comment: str
    name: str
    members: Sequence[Members]

    def fields(self) -> Iterator[tuple[str, str]]:
        """Yield (type, name) of each member in order."""
        for row in self.members:
            yield from ((row.type, name) for name in row.names.split())


class NativeFunction(NamedTuple):
    """A function that a library exports; ``parameters``: (type, name)."""

    comment: str
    returns: str
    name: str
    parameters: Sequence[tuple[str, str]]


Entry = Constants | Texts | KernelList | Enumeration | Structure | NativeFunction

_SCALARS = {
    "double": ctypes.c_double,
    "float": ctypes.c_float,
    "int": ctypes.c_int,
    "int32_t": ctypes.c_int32,
    "size_t": ctypes.c_size_t,
    "uint32_t": ctypes.c_uint32,
    "uint8_t": ctypes.c_uint8,
}


class CTypes:
    """Structures and functions of the table ``entries`` as ctypes has them."""

    def __init__(self, entries: Sequence[Entry]) -> None:
        self.structures: dict[str, type[ctypes.Structure]] = {}
        self._lengths: dict[str, int] = {}
        self._functions: list[NativeFunction] = []
        for entry in entries:
            match entry:
                case Constants(_, values):
                    self._lengths.update(values)
                case Structure():
                    fields = [(name, self._type(of)) for of, name in entry.fields()]
                    self.structures[entry.name] = type(
                        entry.name, (ctypes.Structure,), {"_fields_": fields}
                    )
                case NativeFunction():
                    self._functions.append(entry)
                case _:
                    pass

    def declare(self, library: ctypes.CDLL) -> None:
        """Give the functions of ``library`` the types of the table.

        Raises:
            AttributeError: it has not all of them.
        """
        for entry in self._functions:
            function = getattr(library, entry.name)
            function.restype = None if entry.returns == "void" else self._type(entry.returns)
            function.argtypes = [self._type(of) for of, _ in entry.parameters]

    def _type(self, text: str) -> Any:  # ctypes has no public base class
        plain, _, length = text.removesuffix("]").partition("[")
        if plain == "const char *":
            kind: Any = ctypes.c_char_p
        elif plain.endswith("*"):
            kind = ctypes.c_void_p
        else:
            kind = _SCALARS.get(plain) or self.structures[plain.removeprefix("struct ")]
        return kind * self._lengths[length] if length else kind
