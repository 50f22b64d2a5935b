"""Packs as CNNs of applications: layers, times of a profile, and where partitions cut a pack."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from models.packs.pack import Pack
from papers.applications.application import Application, ApplicationError
from papers.applications.cost import Estimated, Times
from papers.applications.schedule import WHOLE, phases
from papers.cnn.layers import Cnn
from papers.cnn.of_pack import PackCnn, cnn_of_pack
from pipeline.fitting.predicting import Predictions
from pipeline.planning.estimates import LAUNCH_SECONDS, ArithmeticRows, Estimates
from pipeline.profiles.profile import Profile
from pipeline.program.partitions import Cuts
from pipeline.program.program import Program
from pipeline.program.steps import row_network

_PARAMETER_BYTES = 4


def cnn_with_parameters(pack: Pack, name: str) -> PackCnn:
    """Return the CNN of ``pack``, called ``name``; parameters of no layer count for its first one."""
    found = cnn_of_pack(pack.manifest)
    weights = {layer.name: layer.weight_bytes // _PARAMETER_BYTES for layer in pack.manifest.layers}
    layers = [replace(layer, parameters=weights.get(layer.name, 0)) for layer in found.cnn.layers]
    missing = sum(weights.values()) - sum(layer.parameters for layer in layers)
    layers[0] = replace(layers[0], parameters=layers[0].parameters + missing)
    return replace(found, cnn=Cnn(name, tuple(layers), found.cnn.edges))


@dataclass(frozen=True)
class PackTimes:
    """Times of one pack's layers by its ``profile``: of kernels on so many rows, and of their copies."""

    program: Program
    model: PackCnn
    profile: Profile

    @cached_property
    def _estimates(self) -> Estimates:
        return Predictions.of(self.program, self.profile).estimates

    @cached_property
    def _whole(self) -> dict[str, float]:
        """What the pieces of each layer take that never run on rows."""
        seconds, covered = self._estimates.times.pieces, row_network(self.program).covered
        return {
            layer.name: sum(
                LAUNCH_SECONDS + seconds[piece]
                for piece in range(layer.first_piece, layer.end_piece)
                if piece not in covered
            )
            for layer in self.program.layers
        }

    def seconds(self, layer: int, rows: int) -> float:
        """Return what all phases of a layer take."""
        operator, item = self.model.operators[layer], self.model.cnn.layers[layer]
        if operator is None:
            return self._whole.get(item.name, 0.0)
        height = item.output.height
        if rows == WHOLE or rows >= height:
            return self._estimates.on_rows(operator, height)
        n_bytes = rows * item.output.row_elements * _PARAMETER_BYTES
        moving = ArithmeticRows(row_network(self.program)).move(n_bytes)
        phase = self._estimates.on_rows(operator, rows) + moving
        return phases(item, rows) * phase


@dataclass(frozen=True)
class AllTimes:
    """Times of an application: those of its packs that have a profile, else estimates."""

    application: Application
    packs: Sequence[PackTimes | None]

    def seconds(self, cnn: int, layer: int, rows: int) -> float:
        known = self.packs[cnn]
        if known is None:
            estimated: Times = Estimated(self.application)
            return estimated.seconds(cnn, layer, rows)
        return known.seconds(layer, rows)


# Where the partitions of an application cut a pack: at the nearest place where it can be cut.


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
    cuts: list[Cut] = []
    for partition in application.of_cnn(number)[1:]:
        first = min(application.partitions[partition].layers)
        wanted = model.first_pieces[first]
        last = cuts[-1].piece if cuts else 0
        free = [place for place in places if place > last]
        if not free:
            raise ApplicationError(
                f"{model.cnn.name}: no partition can begin at {model.cnn.layers[first].name!r} or "
                f"behind it: the pack can be cut at {len(places)} places"
            )
        piece = min(free, key=lambda place: abs(place - wanted))
        asked, layer = model.cnn.layers[first].name, first_layer(model, piece)
        cuts.append(Cut(piece, model.cnn.layers[layer].name, asked))
    return tuple(cuts)


def first_layer(model: PackCnn, piece: int) -> int:
    """Return the first layer that begins at ``piece`` or behind it."""
    return next(at for at, first in enumerate(model.first_pieces) if first >= piece)


def layers_at(model: PackCnn, cuts: Sequence[int]) -> tuple[int, ...]:
    """Return the layers before which partitions begin that begin before the pieces ``cuts``."""
    return tuple(first_layer(model, piece) for piece in cuts)
