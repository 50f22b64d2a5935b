"""Where the partitions of an application cut a pack: at the nearest place where it can be cut."""

from collections.abc import Sequence
from dataclasses import dataclass

from models.geometry.of_pack import PackCnn
from papers.applications.application import Application, ApplicationError
from pipeline.program.partitions import Cuts
from pipeline.program.program import Program


@dataclass(frozen=True)
class Cut:
    """A partition begins before ``piece``: before ``layer``, where ``asked`` was to begin it."""

    piece: int
    layer: str
    asked: str

    @property
    def moved(self) -> bool:
        return self.layer != self.asked


def cuts_of(
    application: Application, number: int, program: Program, model: PackCnn
) -> tuple[Cut, ...]:
    """Return where model ``number`` is cut; () where its partitions do not run at once.

    Raises:
        ApplicationError: the pack has no place for one of them.
    """
    if not application.is_pipelined(number):
        return ()
    places = Cuts(program).places
    found: list[Cut] = []
    for partition in application.of_cnn(number)[1:]:
        first = min(application.partitions[partition].layers)
        wanted = model.first_pieces[first]
        last = found[-1].piece if found else 0
        free = [place for place in places if place > last]
        if not free:
            raise ApplicationError(
                f"{model.cnn.name}: no partition can begin at {model.cnn.layers[first].name!r} or "
                f"behind it: the pack can be cut at {len(places)} places"
            )
        piece = min(free, key=lambda place: abs(place - wanted))
        asked, layer = model.cnn.layers[first].name, first_layer(model, piece)
        found.append(Cut(piece, model.cnn.layers[layer].name, asked))
    return tuple(found)


def first_layer(model: PackCnn, piece: int) -> int:
    """Return the first layer that begins at ``piece`` or behind it."""
    return next(at for at, first in enumerate(model.first_pieces) if first >= piece)


def layers_at(model: PackCnn, cuts: Sequence[int]) -> tuple[int, ...]:
    """Return the layers before which partitions begin that begin before the pieces ``cuts``."""
    return tuple(first_layer(model, piece) for piece in cuts)
