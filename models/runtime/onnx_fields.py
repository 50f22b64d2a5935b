"""Numbers of the fields of ONNX's messages (onnx.proto) that a serving process reads or writes as bytes."""

from enum import IntEnum


class ModelField(IntEnum):
    """ModelProto."""

    IR_VERSION = 1
    GRAPH = 7
    OPSET_IMPORT = 8


class OpsetField(IntEnum):
    """OperatorSetIdProto."""

    DOMAIN = 1
    VERSION = 2


class GraphField(IntEnum):
    """GraphProto."""

    NODE = 1
    NAME = 2
    INITIALIZER = 5
    INPUT = 11
    OUTPUT = 12


class NodeField(IntEnum):
    """NodeProto."""

    INPUT = 1
    OUTPUT = 2
    NAME = 3
    OP_TYPE = 4
    ATTRIBUTE = 5
    DOMAIN = 7


class AttributeField(IntEnum):
    """AttributeProto: ``INTS`` holds many numbers."""

    NAME = 1
    INTS = 8
    TYPE = 20


class TensorField(IntEnum):
    """TensorProto: a weight or constant."""

    NAME = 8


class ValueField(IntEnum):
    """ValueInfoProto: a port."""

    NAME = 1
    TYPE = 2


class TypeField(IntEnum):
    """TypeProto."""

    TENSOR_TYPE = 1


class TensorTypeField(IntEnum):
    """TypeProto.Tensor."""

    ELEM_TYPE = 1
    SHAPE = 2


class ShapeField(IntEnum):
    """TensorShapeProto."""

    DIM = 1


class DimensionField(IntEnum):
    """TensorShapeProto.Dimension."""

    DIM_VALUE = 1


#: AttributeProto.INTS as a type, and TensorProto.FLOAT.
TYPE_INTS, FLOAT = 7, 1
