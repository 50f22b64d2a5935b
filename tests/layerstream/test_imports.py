"""What a program that runs models does not import: each takes memory that models could have."""

import json
import subprocess
import sys

from models.packs.pack import Pack

#: Of programs that ask and wait: validation, pictures, event loops, and what maps OpenSSL.
_UNUSED = {
    "pydantic",
    "PIL",
    "ssl",
    "asyncio",
    "_hashlib",
    "tempfile",
    "subprocess",
    "fastapi",
    "onnx",
    # Of packs in several shapes.
    "models.packs.shapes",
    "pipeline.budget.shapes",
    "pipeline.execution.shaped",
    "pipeline.planning.shapes",
}
_CODE = """
import json, sys
import numpy as np
import layerstream
with layerstream.open(sys.argv[1], budget="1GiB") as model:
    model({port.name: np.zeros(port.shape, port.dtype) for port in model.inputs})
print(json.dumps([*sys.modules]))
"""


def test_a_program_that_runs_a_model_imports_no_more_than_it_uses(tiny_pack: Pack) -> None:
    done = subprocess.run(
        [sys.executable, "-c", _CODE, str(tiny_pack.folder)],
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    imported = set(json.loads(done.stdout))
    assert not _UNUSED & imported
    assert not {"server", "papers", "models.compiler", "pipeline.measuring"} & imported
