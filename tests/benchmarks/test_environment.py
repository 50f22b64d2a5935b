"""The private environment has all that we need, and nothing of it is in memory when it is measured."""

import sys
from pathlib import Path

import pytest

from benchmarks.machine import page_cache
from benchmarks.machine.environment import copy_environment, needed


def test_what_we_need_is_what_our_distributions_require() -> None:
    names = {found.metadata["Name"].lower() for found in needed(["layerstream", "not-installed-1"])}
    assert {"layerstream", "numpy", "onnxruntime", "fastapi", "starlette"} <= names
    assert not {"pytest", "openvino", "matplotlib", "mypy"} & names


def test_files_are_dropped_or_counted_as_left(tmp_path: Path) -> None:
    file, empty = tmp_path / "weights", tmp_path / "empty"
    file.write_bytes(bytes(3 << 20))
    empty.touch()
    (tmp_path / "link").symlink_to(file)
    files = page_cache.files_below(tmp_path)
    assert sorted(files) == [empty, file]
    assert page_cache.cached_bytes(files) == 3 << 20
    # In memory (tmpfs) they stay; whatever is left is reported.
    assert page_cache.drop(files) == page_cache.cached_bytes(files) in (0, 3 << 20)


@pytest.mark.slow
def test_the_copy_runs_from_its_own_files(tmp_path: Path) -> None:
    environment = copy_environment(tmp_path / "environment")
    environment.drop()
    code = (
        "import sys, server.serve, benchmarks.children.peer_server\n"
        "for module in list(sys.modules.values()):\n"
        "    print(getattr(module, '__file__', None) or '')\n"
        "print(sys.executable, sys.dont_write_bytecode)"
    )
    *files, last = environment.run("-c", code).split("\n")[:-1]
    assert len(files) > 500
    assert [path for path in files if path and str(tmp_path) not in path] == []
    assert last.startswith(str(tmp_path))
    command = environment.private([sys.executable, "-m", "json.tool"])
    assert command[-2:] == ["-m", "json.tool"]
    assert sys.executable not in command
