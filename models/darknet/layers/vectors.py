"""Layers that see their input as one vector, and those that leave it as it is."""

import math

from models.darknet.layers.layer import DarknetLayer
from models.darknet.layers.parameters import (
    ConnectedParameters,
    IdentityParameters,
    SoftmaxParameters,
)
from models.darknet.layers.scope import SectionScope
from models.darknet.layers.spatial import activation, norm_arrays


def connected(scope: SectionScope) -> DarknetLayer:
    """Return a [connected]; its array of weights is before those of batch normalisation."""
    options = scope.options
    outputs = options.integer("output", 1)
    normalize = options.flag("batch_normalize")
    parameters = ConnectedParameters(outputs, normalize, activation(options, "logistic"))
    arrays = {"biases": (outputs,), "weights": (outputs, math.prod(scope.input))}
    arrays |= norm_arrays(outputs) if normalize else {}
    return scope.layer((outputs, 1, 1), parameters, arrays)


def softmax(scope: SectionScope) -> DarknetLayer:
    """Return a [softmax] over all numbers of its input."""
    count = math.prod(scope.input)
    groups = scope.options.integer("groups", 1)
    if count % groups:
        scope.options.fail(f"groups={groups} do not divide the {count} numbers of its input")
    parameters = SoftmaxParameters(groups, scope.options.number("temperature", 1.0))
    return scope.layer((count, 1, 1), parameters)


def identity(scope: SectionScope) -> DarknetLayer:
    """Return a layer that inference leaves out."""
    return scope.layer(scope.input, IdentityParameters())
