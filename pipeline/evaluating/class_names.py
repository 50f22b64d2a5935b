"""Which output of a model a class of a data set is."""

from collections.abc import Sequence

from models.datasets.samples import DataError


def class_numbers(
    names: Sequence[str], labels: Sequence[str], outputs: int, classes: Sequence[str] = ()
) -> dict[str, int]:
    """Return the number of each of ``names``: by the model's ``labels``, whatever their case.

    A model without labels has numbers for names, or the data set's ``classes`` in their order if there are
    as many as ``outputs``.

    Raises:
        DataError: one of them is no class of the model.
    """
    if labels:
        known = {_plain(label): number for number, label in enumerate(labels)}
    elif len(classes) == outputs and not all(name.isdecimal() for name in names):
        known = {_plain(name): number for number, name in enumerate(classes)}
    else:
        known = {str(number): number for number in range(outputs)}
    missing = [name for name in names if _plain(name) not in known]
    if missing:
        few = ", ".join(map(repr, missing[:4])) + (" ..." if len(missing) > 4 else "")
        has = ", ".join(map(repr, list(known)[:4])) + (" ..." if len(known) > 4 else "")
        raise DataError(f"no class of the model: {few}; it has {has}")
    return {name: known[_plain(name)] for name in names}


def _plain(name: str) -> str:
    return " ".join(name.casefold().replace("_", " ").split())
