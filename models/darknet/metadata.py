"""Entries of an ONNX file (models/graphs/metadata.py) that only Darknet has: for the way back."""

#: The cfg as text (models/darknet/cfg/text.py), with the resolution of the import.
CFG = "layerstream.darknet.cfg"
#: Header (models/darknet/weights.py) of the .weights file, when there was one.
HEADER = "layerstream.darknet.header"
