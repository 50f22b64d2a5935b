"""Which operators run on rows."""

from pathlib import Path

from tests.examples import over
from tests.models.nets import parsed, written
from tests.models.streamed import compiled


@over(
    "operator", ["MaxPool<kernel_shape=[3]>(x)", "AveragePool<kernel_shape=[9]>(x)", "Conv(x, w)"]
)
def test_windows_along_one_axis_have_no_rows(operator: str, tmp_path: Path) -> None:
    model = parsed(f"g (float[1,4,9] x) => (float y) {{ y = {operator} }}", {"w": (8, 4, 3)})
    name = operator.partition("(")[0].partition("<")[0]
    (tmp_path / name).mkdir()
    pack = compiled(written(model, tmp_path / name / "m.onnx"), tmp_path / name)
    assert not pack.manifest.row_operators
