"""What a network is: ONNX in, packs out; preprocessing and labels."""

import os

# ONNX Runtime 1.29 and later reports usage to its makers unless that is turned off before it is loaded.
os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")
