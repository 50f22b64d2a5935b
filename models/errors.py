"""What can be wrong with a model on disk. Messages are one line and name the file and the field."""


class ModelError(Exception):
    """A model, or a file that belongs to it, cannot be used; the base of all errors of models/."""


class OnnxError(ModelError):
    """The source is not an ONNX model that can be compiled."""


class CompileError(ModelError):
    """The source is sound but compiling it failed, or its result could not be written."""


class PackError(ModelError):
    """A pack on disk is not what its manifest or the format says."""
