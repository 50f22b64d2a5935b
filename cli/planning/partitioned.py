"""How many workers ``plan`` gives to each pack."""

from collections.abc import Collection, Mapping, Sequence

import typer

from server.settings.per_model import ALL, MOST_WORKERS, has_several, parse_workers


def workers_by_model(
    text: str | None, limits: Sequence[object], show_frontier: bool
) -> dict[str, int]:
    """Return the numbers of [MODEL=]NUMBER; ``limits``: what may not be asked beside several.

    Raises:
        typer.BadParameter: it is not of that form, or the plan of partitions cannot be what is asked.
    """
    if text is None:
        return {}
    try:
        found = parse_workers(text)
    except ValueError as exc:
        raise typer.BadParameter(str(exc), param_hint="--workers") from exc
    assert isinstance(found, dict)
    if not all(1 <= number <= MOST_WORKERS for number in found.values()):
        raise typer.BadParameter(f"from 1 to {MOST_WORKERS}", param_hint="--workers")
    if has_several(found) and (show_frontier or any(limit is not None for limit in limits)):
        raise typer.BadParameter(
            "partitions are planned within --budget alone", param_hint="--workers"
        )
    return found


def check_models(workers: Mapping[str, int], models: Collection[str]) -> None:
    """Refuse workers of what is none of ``models``.

    Raises:
        typer.BadParameter: there are some.
    """
    unknown = sorted(set(workers) - {ALL, *models})
    if unknown:
        raise typer.BadParameter(
            f"{unknown[0][:60]!r} is none of the packs: {', '.join(models)}", param_hint="--workers"
        )
