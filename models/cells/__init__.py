"""A detector of blood cells, trained on BCCD, with a photograph: see README.md."""

from pathlib import Path

#: Holds detector.onnx, which has its recipes with it, and cells.jpg.
FOLDER = Path(__file__).parent
