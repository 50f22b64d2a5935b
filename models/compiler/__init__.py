"""From an ONNX file to a pack: ``compile_onnx`` in compile.py; the steps in the order it calls them."""

from models.compiler.compile import compile_onnx
from models.compiler.options import CompileOptions

__all__ = ["CompileOptions", "compile_onnx"]
