"""The servers that are compared with ours, and the files that each serves."""

import importlib.util
from dataclasses import dataclass
from pathlib import Path

from benchmarks.servers.served import ours, peer

OURS, RESIDENT, MAPPED = "layerstream", "fastapi_onnxruntime", "fastapi_onnxruntime_mapped"
OPENVINO = "fastapi_openvino"
TITLES = {
    OURS: "Layerstream",
    RESIDENT: "ONNX Runtime, resident",
    MAPPED: "ONNX Runtime, file mapped",
    OPENVINO: "OpenVINO, resident",
}


@dataclass(frozen=True)
class ServerContender:
    """A server of one network: its command, less the port, and the files that it opens."""

    name: str
    command: tuple[str, ...]
    port_flag: tuple[str, ...]
    files: tuple[Path, ...]


def contenders(source: Path, repository: Path, budget: str) -> dict[str, ServerContender]:
    """Return all servers that can serve ``source``, which was compiled into ``repository``, by name.

    OpenVINO is left out where it is not installed.
    """
    (graph,) = repository.glob("*/*/model.onnx")
    found = [
        ServerContender(OURS, tuple(ours(repository, budget)), ("--port",), (repository,)),
        ServerContender(RESIDENT, tuple(peer(source)), (), (source,)),
        ServerContender(MAPPED, tuple(peer(graph, "onnxruntime-mapped")), (), (graph.parent,)),
    ]
    if importlib.util.find_spec("openvino") is not None:
        found.append(ServerContender(OPENVINO, tuple(peer(source, "openvino")), (), (source,)))
    return {each.name: each for each in found}
