"""Which output of a model a class of a data set is."""

from collections import Counter
from collections.abc import Iterable, Sequence

from models.datasets.samples import DataError


def class_numbers(
    names: Sequence[str], labels: Sequence[str], outputs: int, classes: Sequence[str] = ()
) -> dict[str, int]:
    """Return the number of each of ``names``, as ``known_numbers``.

    Raises:
        DataError: one of them is no class of the model, or several are called like it.
    """
    found = known_numbers(names, labels, outputs, classes)
    missing = [name for name in names if name not in found]
    if missing:
        has = list(_known(names, labels, outputs, classes))
        raise DataError(f"no class of the model: {_few(missing)}; it has {_few(has)}")
    return found


def known_numbers(
    names: Iterable[str], labels: Sequence[str], outputs: int, classes: Sequence[str] = ()
) -> dict[str, int]:
    """Return the number of each of ``names`` that is a class of the model.

    That is by the model's ``labels``, whatever their case. A model without labels has numbers for names, or
    the data set's ``classes`` in their order if there are as many as ``outputs``.

    Raises:
        DataError: several classes of the model are called like one of them.
    """
    known = _known(names, labels, outputs, classes)
    return {name: known[_plain(name)] for name in names if _plain(name) in known}


def _known(
    names: Iterable[str], labels: Sequence[str], outputs: int, classes: Sequence[str]
) -> dict[str, int]:
    if labels:
        times = Counter(map(_plain, labels))
        if several := [name for name in names if times[_plain(name)] > 1]:
            raise DataError(f"several classes of the model have this name: {_few(several)}")
        return {_plain(label): number for number, label in enumerate(labels)}
    if len(classes) == outputs and not all(name.isdecimal() for name in names):
        return {_plain(name): number for number, name in enumerate(classes)}
    return {str(number): number for number in range(outputs)}


def _few(names: Sequence[str]) -> str:
    return ", ".join(map(repr, names[:4])) + (" ..." if len(names) > 4 else "")


def _plain(name: str) -> str:
    return " ".join(name.casefold().replace("_", " ").split())
