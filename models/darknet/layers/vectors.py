"""Layers that see their input as one vector, and those that leave it as it is."""

import math

from models.darknet.layers.layer import Layer
from models.darknet.layers.parameters import Connected, Identity, Softmax
from models.darknet.layers.scope import Scope
from models.darknet.layers.spatial import activation, norm_arrays


def connected(scope: Scope) -> Layer:
    """Return a [connected]; its array of weights is before those of batch normalisation."""
    options = scope.options
    outputs = options.integer("output", 1)
    normalize = options.flag("batch_normalize")
    parameters = Connected(outputs, normalize, activation(options, "logistic"))
    arrays = {"biases": (outputs,), "weights": (outputs, math.prod(scope.input))}
    arrays |= norm_arrays(outputs) if normalize else {}
    return scope.layer((outputs, 1, 1), parameters, arrays)


def softmax(scope: Scope) -> Layer:
    """Return a [softmax] over all numbers of its input."""
    count = math.prod(scope.input)
    groups = scope.options.integer("groups", 1)
    if count % groups:
        scope.options.fail(f"groups={groups} do not divide the {count} numbers of its input")
    parameters = Softmax(groups, scope.options.number("temperature", 1.0))
    return scope.layer((count, 1, 1), parameters)


def identity(scope: Scope) -> Layer:
    """Return a layer that inference leaves out."""
    return scope.layer(scope.input, Identity())
