"""The order of nodes follows from the source alone."""

import os
import subprocess
import sys
from pathlib import Path

import onnx
import pytest

from models.packs.pack import FILES
from tests.models.nets import parsed, written

_COMPILE = """
import sys
from pathlib import Path
from models.compiler import compile_onnx
compile_onnx(Path(sys.argv[1]), Path(sys.argv[2]))
"""
_CONVOLUTIONS = range(6)


def siblings() -> onnx.ModelProto:
    """Convolutions of one tensor, each of which is turned back: three channels fill no block."""
    made = "".join(f"a{n} = Conv<pads=[1,1,1,1]>(x, w{n})\n" for n in _CONVOLUTIONS)
    joined = ", ".join(f"a{n}" for n in _CONVOLUTIONS)
    return parsed(
        f"""siblings (float[1,3,16,16] x) => (float[1,99,16,16] y) {{
            {made} y = Concat<axis=1>(x, {joined})
        }}""",
        {f"w{n}": (16, 3, 3, 3) for n in _CONVOLUTIONS},
    )


@pytest.mark.slow
def test_two_processes_make_the_same_bytes(tmp_path: Path) -> None:
    source = written(siblings(), tmp_path / "siblings.onnx")
    packs = []
    for seed in ("1", "2"):
        folder = tmp_path / seed / "siblings"
        subprocess.run(
            [sys.executable, "-c", _COMPILE, source, folder],
            env={**os.environ, "PYTHONHASHSEED": seed},
            check=True,
            timeout=60,
        )
        packs.append({name: (folder / "1" / name).read_bytes() for name in sorted(FILES)})
    assert packs[0] == packs[1]
