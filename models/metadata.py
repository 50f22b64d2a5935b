"""What an ONNX file says about itself beyond ONNX: entries of ``metadata_props``, each a JSON text.

Importers and the zoo write them; ``compile`` reads them, so that such a file needs no further flags.
Other tools ignore entries they do not know.
"""

import json
from collections.abc import Mapping
from typing import Any

import onnx

#: Preprocess (models/preprocess.py): how an image becomes the one input.
PREPROCESS = "layerstream.preprocess"
#: Detection (models/detection.py): how the outputs become boxes.
DETECTION = "layerstream.detection"
#: A list of texts: the classes in the order of the scores.
LABELS = "layerstream.labels"
#: SourceSizes (models/manifest.py): what the tool that the network comes from counts.
SIZES = "layerstream.sizes"


def write_metadata(model: onnx.ModelProto, entries: Mapping[str, Any]) -> None:
    """Set ``entries`` (values that JSON can hold) in the metadata of ``model``."""
    kept = {item.key: item.value for item in model.metadata_props}
    kept |= {key: json.dumps(value, separators=(",", ":")) for key, value in entries.items()}
    del model.metadata_props[:]
    for key, value in kept.items():
        model.metadata_props.add(key=key, value=value)
