"""The classifier: features of all tunnels are summed up, then a fully connected layer (seed 004)."""

from functools import reduce

import onnx

from models.zoo.builder import SIGNED, SkeletonBuilder, ZooTensor
from models.zoo.patchnet.design import Design
from models.zoo.patchnet.network import tunnel


def classifier(design: Design, classes: int) -> onnx.ModelProto:
    """Return the network; output "logits" [1, classes].

    What a tunnel leaves is the mean of each channel: the sum needs no more memory than that.
    """
    net = SkeletonBuilder("patchnet", design.options.image[:2], SIGNED)

    def features(number: int) -> ZooTensor:
        return net.global_pool(tunnel(net, design, number)[design.layers[-1].name])

    total = reduce(lambda x, n: net.add(x, features(n)), range(1, len(design.patches)), features(0))
    return net.model(net.linear(net.flatten(total), classes))
