"""From an ONNX file to a pack: ``compile_onnx`` in compile.py; the steps in the order it calls them."""

from models.compiler.compile import CompileOptions, compile_onnx

__all__ = ["CompileOptions", "compile_onnx"]
