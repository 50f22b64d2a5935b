"""Which joined values had better lie in parts, and which inputs with the request.

A value that is joined of others (a concatenation) has its memory from its first part on, though the others
may come much later. Where all who read it are in regions, which take rows of the parts, its parts may lie
anywhere, each only while it is needed. But then all of them must be in regions.
"""

from pipeline.program.lives import Lifetime, joins, lifetimes
from pipeline.program.program import Program
from pipeline.program.row_network import RowNetwork
from pipeline.program.values.shared_memory import roots

# Joins that wait for their parts with this part of all bytes that live, over time, are tried together;
# then all.
_WORTH = (0.02, 0.0)


def worth_apart(program: Program, network: RowNetwork) -> list[frozenset[int]]:
    """Return sets of joined values to try apart: first those that keep most for nothing, last all."""
    possible = _read_in_parts(program, network)
    places = roots(program)
    together = list(map(_byte_moments, lifetimes(program)))
    apart = dict.fromkeys(sorted(possible), 0)
    # What lies in one joined value does not depend on whether others are apart.
    for value, life in enumerate(lifetimes(program, apart=possible)):
        root = places[value][0]
        if root in apart:
            apart[root] += _byte_moments(life)
    kept = {value: together[value] - apart[value] for value in apart}
    sets = [
        frozenset(value for value in kept if kept[value] >= worth * sum(together))
        for worth in _WORTH
    ]
    return [found for found in dict.fromkeys(sets) if found]


def _read_in_parts(program: Program, network: RowNetwork) -> frozenset[int]:
    """Return the joined values that nobody needs whole if all who read them are in regions."""
    users = _users(program)
    made = {operand.index for piece in program.own_pieces for operand in piece.outputs}
    made |= {port.value for port in (*program.inputs, *program.outputs)}
    return frozenset(
        whole
        for whole, parts in program.made(joins).items()
        if len(parts) > 1 and whole not in made and network.covered >= users.get(whole, set())
    )


def inputs_in_parts(program: Program, network: RowNetwork) -> frozenset[int]:
    """Return the inputs that several pieces read, far from each other, and all of them could be in regions.

    Then the request may keep them (patches of an image: each region takes its rows), if all are.
    """
    users = _users(program)
    inputs = {port.value: users.get(port.value, set()) for port in program.inputs}
    return frozenset(
        value for value, found in inputs.items() if len(found) > 1 and network.covered >= found
    )


def _users(program: Program) -> dict[int, set[int]]:
    """Return the pieces that read each value."""
    users: dict[int, set[int]] = {}
    for number in program.own:
        for operand in program.pieces[number].inputs:
            if operand.kind == "value":
                users.setdefault(operand.index, set()).add(number)
    return users


def _byte_moments(life: Lifetime) -> int:
    """Return its bytes times the pieces for which it lives."""
    return life.n_bytes * (life.end - life.start)
