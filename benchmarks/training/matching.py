"""Which box each cell on a photograph is, and how wrong a detector is about it (SSD, Liu et al. 2016)."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

_OVERLAP = 0.5
#: Between these an anchor is neither the object nor background.
_NOTHING = 0.4
_CENTRE, _SIZE = 0.1, 0.2
_ALPHA, _GAMMA = 0.25, 2.0


@dataclass(frozen=True)
class AnchorTargets:
    """Of one photograph: anchors that are objects, their boxes [n, 4] (centre, size) and classes.

    ``counted``: bool [anchors], those that say something about classes.
    """

    index: Tensor
    boxes: Tensor
    classes: Tensor
    counted: Tensor


def overlaps(first: Tensor, second: Tensor) -> Tensor:
    """Return intersection over union of edges [n, 4] and [m, 4] (x0, y0, x1, y1), [n, m]."""
    low = torch.maximum(first[:, None, :2], second[None, :, :2])
    high = torch.minimum(first[:, None, 2:], second[None, :, 2:])
    inner = (high - low).clamp(min=0).prod(2)
    areas = [(edges[:, 2:] - edges[:, :2]).prod(1) for edges in (first, second)]
    return inner / (areas[0][:, None] + areas[1][None] - inner).clamp(min=1e-9)


def matched(anchors: Tensor, edges: Tensor, classes: Tensor) -> AnchorTargets:
    """Match ``anchors`` [a, 4] (centre, size) with objects: the best of each, and what overlaps by half."""
    corners = torch.cat(
        [anchors[:, :2] - anchors[:, 2:] / 2, anchors[:, :2] + anchors[:, 2:] / 2], 1
    )
    if not len(edges):
        nothing = torch.zeros(0, dtype=torch.long)
        every = torch.ones(len(anchors), dtype=torch.bool)
        return AnchorTargets(nothing, torch.zeros(0, 4), nothing, every)
    shared = overlaps(corners, edges)
    best, which = shared.max(1)
    favourite = shared.argmax(0)
    best[favourite], which[favourite] = 1.0, torch.arange(len(edges))
    index = (best >= _OVERLAP).nonzero()[:, 0]
    counted = (best >= _OVERLAP) | (best < _NOTHING)
    found = edges[which[index]]
    boxes = torch.cat([(found[:, :2] + found[:, 2:]) / 2, found[:, 2:] - found[:, :2]], 1)
    return AnchorTargets(index, boxes, classes[which[index]], counted)


def box_loss(boxes: Tensor, anchors: Tensor, targets: Sequence[AnchorTargets]) -> Tensor:
    """Return smooth L1 of SSD's offsets of ``boxes`` [N, 4, a] in pixels, a mean over matched anchors."""
    total = boxes.new_zeros(())
    for given, target in zip(boxes, targets, strict=True):
        own, anchor = given.T[target.index], anchors[target.index]
        total = total + F.smooth_l1_loss(
            _offsets(own, anchor), _offsets(target.boxes, anchor), reduction="sum"
        )
    return total / max(1, sum(len(target.index) for target in targets))


def _offsets(boxes: Tensor, anchors: Tensor) -> Tensor:
    centre = (boxes[:, :2] - anchors[:, :2]) / anchors[:, 2:] / _CENTRE
    return torch.cat([centre, (boxes[:, 2:] / anchors[:, 2:]).clamp(min=1e-6).log() / _SIZE], 1)


def focal_loss(scores: Tensor, targets: Sequence[AnchorTargets]) -> Tensor:
    """Return the focal loss (Lin et al. 2017) of logits [N, classes, a], a mean over matched anchors."""
    total = scores.new_zeros(())
    for given, target in zip(scores, targets, strict=True):
        wanted = torch.zeros_like(given)
        wanted[target.classes, target.index] = 1.0
        cross = F.binary_cross_entropy_with_logits(given, wanted, reduction="none")
        likely = given.sigmoid()
        missed = torch.where(wanted > 0, 1 - likely, likely)
        weight = torch.where(wanted > 0, _ALPHA, 1 - _ALPHA) * missed**_GAMMA
        total = total + (weight * cross)[:, target.counted].sum()
    return total / max(1, sum(len(target.index) for target in targets))
