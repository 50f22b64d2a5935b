"""What is asked: small models whose numbers are exact on every machine, and five servers with them."""

import contextlib
import fcntl
import os
import re
import shutil
import socket
import ssl
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import onnx
import trustme
from onnx import TensorProto, helper, numpy_helper

from models.compiler import CompileOptions, compile_onnx
from models.images.preprocess import Preprocess
from server.access import add_key
from tests.models.detector import square_finder

LIMIT_SECONDS = 60.0
ROOT = Path(__file__).parents[2]
#: Of image files, of long tensors.
SIDE, LONG = 4, 1 << 16
#: Settings of the servers: enough for all models but "huge", bodies of a MiB.
MEMORY = ("--budget", "56MiB", "--request-memory", "32MiB", "--max-body", "1MiB", "--threads", "1")
HOST = "layerstream.test"
#: Connections at a time of the server that is held up.
PLACES = 6

_PLACES = {
    "http": re.compile(rb"http[s]?://[^ \"]+:(\d+)|unix:"),
    "grpc": re.compile(rb"gRPC[^:]*: [^ ]+:(\d+)"),
}
_FLOATS, _WHOLE = TensorProto.FLOAT, TensorProto.INT64
#: Of the model "kinds", with two values of each.
KINDS: dict[str, tuple[int, list[Any]]] = {
    "BOOL": (TensorProto.BOOL, [True, False]),
    "UINT8": (TensorProto.UINT8, [0, 255]),
    "UINT16": (TensorProto.UINT16, [0, 65535]),
    "UINT32": (TensorProto.UINT32, [0, 2**32 - 1]),
    "UINT64": (TensorProto.UINT64, [0, 2**64 - 1]),
    "INT8": (TensorProto.INT8, [-128, 127]),
    "INT16": (TensorProto.INT16, [-(2**15), 2**15 - 1]),
    "INT32": (TensorProto.INT32, [-(2**31), 2**31 - 1]),
    "INT64": (TensorProto.INT64, [-(2**63), 2**63 - 1]),
    "FP16": (TensorProto.FLOAT16, [-65504.0, 6e-8]),
    "FP32": (TensorProto.FLOAT, [-3.4028234663852886e38, 0.1]),
    "FP64": (TensorProto.DOUBLE, [-1.7976931348623157e308, 5e-324]),
    "BYTES": (TensorProto.STRING, ["", 'ä€😀 \0 [1, {"x": 2}], "\\']),
}
Ports = Mapping[str, tuple[int, tuple[int, ...]]]


def network(
    nodes: Any, inputs: Ports, outputs: Ports, constants: Mapping[str, Any] | None = None
) -> onnx.ModelProto:
    """Return a model; an input with a constant of its name has that as its default."""
    values = [helper.make_tensor_value_info(name, *port) for name, port in inputs.items()]
    made = [helper.make_tensor_value_info(name, *port) for name, port in outputs.items()]
    known = [
        numpy_helper.from_array(np.asarray(array), name)
        for name, array in (constants or {}).items()
    ]
    graph = helper.make_graph(
        [helper.make_node(*node, **more) for *node, more in nodes], "g", values, made, known
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=9)


def total() -> onnx.ModelProto:
    """Adds whole numbers to floats, and says where most is."""
    return network(
        [
            ("Cast", ["steps"], ["moved"], {"to": _FLOATS}),
            ("Add", ["x", "moved"], ["sum"], {}),
            ("Relu", ["sum"], ["total"], {}),
            ("ArgMax", ["total"], ["best"], {"axis": 1}),
        ],
        {"x": (_FLOATS, (1, 4)), "steps": (TensorProto.INT8, (1, 4))},
        {"total": (_FLOATS, (1, 4)), "best": (_WHOLE, (1, 1))},
    )


def kinds() -> onnx.ModelProto:
    """Every datatype in and out as it is."""
    names = [name.lower() for name in KINDS]
    ports = {name.lower(): (kind, (2,)) for name, (kind, _) in KINDS.items()}
    return network(
        [("Identity", [name], [f"{name}_too"], {}) for name in names],
        ports,
        {f"{name}_too": port for name, port in ports.items()},
    )


def widths(size: int) -> onnx.ModelProto:
    """Rectifies ``size`` floats."""
    ports = dict.fromkeys("xy", (_FLOATS, (1, size)))
    return network([("Relu", ["x"], ["y"], {})], {"x": ports["x"]}, {"y": ports["y"]})


def weighted() -> onnx.ModelProto:
    """Two layers with weights enough to stream: whole numbers, so that sums are exact in any order."""
    numbers = (np.arange(64 * 512) % 5 - 2).astype(np.float32)
    return network(
        [
            ("MatMul", ["x", "v"], ["a"], {}),
            ("Relu", ["a"], ["b"], {}),
            ("MatMul", ["b", "w"], ["y"], {}),
        ],
        {"x": (_FLOATS, (1, 64))},
        {"y": (_FLOATS, (1, 64))},
        {"v": numbers.reshape(64, 512), "w": numbers[::-1].reshape(512, 64)},
    )


def shifted() -> onnx.ModelProto:
    return network(
        [("Add", ["x", "by"], ["y"], {})],
        {"x": (_FLOATS, (2,)), "by": (_FLOATS, (2,))},
        {"y": (_FLOATS, (2,))},
        {"by": np.array([5, -5], np.float32)},
    )


def photo(fails: bool = False) -> onnx.ModelProto:
    """Sums of pixels as scores of four classes; ``fails``: none of them is a number."""
    count = 3 * SIDE * SIDE
    weights = (np.arange(count * 4) % 5 - 2).astype(np.float32).reshape(count, 4)
    nodes: list[Any] = [
        ("Flatten", ["image"], ["flat"], {}),
        ("MatMul", ["flat", "w"], ["sums" if fails else "scores"], {}),
    ]
    if fails:
        nodes += [("Sub", ["sums", "far"], ["low"], {}), ("Log", ["low"], ["scores"], {})]
    return network(
        nodes,
        {"image": (_FLOATS, (1, 3, SIDE, SIDE))},
        {"scores": (_FLOATS, (1, 4))},
        {"w": weights, **({"far": np.array([1e9], np.float32)} if fails else {})},
    )


def open_sized() -> bytes:
    """A file for an upload whose width is open."""
    made = widths(4)
    for value in (*made.graph.input, *made.graph.output):
        value.type.tensor_type.shape.dim[1].dim_param = "n"
    return made.SerializeToString()


def repository(folder: Path) -> Path:
    """Make the packs: one of each kind, versions side by side, one broken, one too large."""
    described = CompileOptions(
        labels=("left", "right", "up", "down"), preprocess=Preprocess(size=(SIDE, SIDE), scale=1.0)
    )
    recipes: dict[str, tuple[onnx.ModelProto, CompileOptions]] = {
        "total": (total(), CompileOptions()),
        "kinds": (kinds(), CompileOptions()),
        "long": (widths(LONG), CompileOptions()),
        "weighted": (weighted(), CompileOptions(chunk_bytes=16 << 10)),
        "huge": (widths(6 << 20), CompileOptions()),
        "shifted": (shifted(), CompileOptions()),
        "photo": (photo(), described),
        "nan": (photo(fails=True), described),
        "finder": (square_finder(), CompileOptions()),
    }
    for name, (model, options) in recipes.items():
        onnx.save(model, folder / f"{name}.onnx")
        compile_onnx(folder / f"{name}.onnx", folder / "packs" / name, options)
    packs = folder / "packs"
    shutil.copytree(packs / "total/1", packs / "total/2")
    (packs / "total/config.pbtxt").write_text("version_policy: { all { } }")
    shutil.copytree(packs / "shifted", packs / "spare")
    shutil.copytree(packs / "shifted", packs / "broken")
    (packs / "broken/1/manifest.json").write_text("{")
    return packs


# The gate of a server: kernels wait while it is locked, and say that they came.


def hold_kernels(folder: Path) -> None:
    """Have kernels of this process wait at the gate in ``folder``; reads fail while "bad" lies there."""
    from pipeline.devices import cpu
    from server.repository import environment
    from tests.server.support import Faults

    faults = Faults()

    def wait() -> None:
        time.sleep(0.002)  # or the event loop would compute, being so quick
        with (folder / "reached").open("ab") as reached:
            reached.write(b".")
        with (folder / "gate").open("ab") as gate:
            fcntl.flock(gate, fcntl.LOCK_SH)

    def read(offset: int, length: int) -> None:
        if (folder / "bad").exists():
            raise OSError(5, "Input/output error")

    faults.kernel, faults.read = wait, read
    vars(cpu)["CpuDevice"], vars(environment)["open_reader"] = faults.device, faults.open_reader


@dataclass
class Server:
    """One that runs: where it listens (``unix`` or ``port``), and its folder, which has its gate."""

    folder: Path
    process: subprocess.Popen[bytes]
    unix: Path | None = None
    port: int = 0
    grpc_port: int = 0
    trust: trustme.CA | None = None
    keys: Mapping[str, str] = field(default_factory=dict)

    def connect(self, plain: bool = False) -> socket.socket:
        """Return a new connection; ``plain``: without TLS where others have it."""
        if self.unix is not None:
            found = socket.socket(socket.AF_UNIX)
            found.settimeout(LIMIT_SECONDS)
            found.connect(str(self.unix))
            return found
        found = socket.create_connection(("127.0.0.1", self.port), LIMIT_SECONDS)
        if self.trust is None or plain:
            return found
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        self.trust.configure_trust(context)
        context.set_alpn_protocols(["h2", "http/1.1"])
        return context.wrap_socket(found, server_hostname=HOST, suppress_ragged_eofs=False)

    def channel(self) -> grpc.Channel:
        place, options = f"127.0.0.1:{self.grpc_port}", [("grpc.enable_retries", 0)]
        if self.trust is None:
            return grpc.insecure_channel(place, options)
        proof = grpc.ssl_channel_credentials(self.trust.cert_pem.bytes())
        named = ("grpc.ssl_target_name_override", HOST)
        return grpc.secure_channel(place, proof, [*options, named])

    @contextlib.contextmanager
    def held(self) -> Iterator[Callable[[], None]]:
        """Hold kernels up; what is given waits until the next one has come to the gate."""
        reached = self.folder / "reached"
        before = reached.stat().st_size if reached.exists() else 0
        with (self.folder / "gate").open("ab") as gate:
            fcntl.flock(gate, fcntl.LOCK_EX)
            yield lambda: until(lambda: reached.exists() and reached.stat().st_size > before)

    def read_log(self) -> None:
        """Find the ports in what it says, and go on reading, or it fills the pipe."""
        assert self.process.stderr is not None
        said = b""
        for line in self.process.stderr:
            said += line
            for way, pattern in _PLACES.items():
                if found := pattern.search(line):
                    name = "port" if way == "http" else "grpc_port"
                    setattr(self, name, int(found[1] or 0))
                    if way == "http":  # it comes last
                        reader = threading.Thread(target=list, args=(self.process.stderr,))
                        reader.start()
                        return
        raise AssertionError(f"a server did not start: {said.decode()}")


def until(holds: Callable[[], bool]) -> None:
    """Wait until something ``holds``."""
    for _ in range(int(LIMIT_SECONDS / 0.005)):
        if holds():
            return
        time.sleep(0.005)
    raise AssertionError("what was waited for did not come")


#: Flags of each server, beside MEMORY, ports and its files.
FLAGS: dict[str, tuple[str, ...]] = {
    "usual": (
        *("--models", "total,kinds,long,shifted,photo,nan,finder,broken,huge"),
        *("--max-image-pixels", "10000"),
    ),
    "keys": ("--models", "total,photo", "--public-metrics"),
    "unix": ("--models", "total,finder", "--max-upload", "4KiB", "--trusted-proxies", "unix"),
    "held": (
        *(
            "--models",
            "total,photo,weighted",
            "--queue-limit",
            "1",
            "--max-connections",
            str(PLACES),
        ),
    ),
    "short": (
        *("--models", "total,photo", "--model-control", "none", "--header-timeout", "2"),
        *("--idle-timeout", "2", "--stall-timeout", "2"),
    ),
}


@contextlib.contextmanager
def served(folder: Path) -> Iterator[dict[str, Server]]:
    """Serve the packs, five ways at a time."""
    packs = repository(folder)
    authority = trustme.CA()
    with contextlib.ExitStack() as stack:
        servers = {name: _begun(name, packs, authority, folder / name) for name in FLAGS}
        for server in servers.values():
            stack.callback(_end, server)
        for server in servers.values():
            server.read_log()
        yield servers


def _begun(name: str, packs: Path, authority: trustme.CA, folder: Path) -> Server:
    folder.mkdir()
    shutil.copytree(packs, folder / "packs")
    flags = ["--repository", str(folder / "packs"), *MEMORY, *FLAGS[name], "--grpc-port", "0"]
    more: dict[str, Any] = {}
    if name == "unix":
        more["unix"] = folder / "socket"
        flags += ["--unix-socket", str(more["unix"])]
    else:
        flags += ["--port", "0"]
    if name == "keys":
        issued = authority.issue_cert(HOST)
        issued.private_key_and_cert_chain_pem.write_to_path(folder / "tls.pem")
        flags += ["--tls-certificate", str(folder / "tls.pem"), "--keys", str(folder / "keys")]
        keys = {role: add_key(folder / "keys", f"a-{role}", role) for role in ("infer", "admin")}
        more |= {"trust": authority, "keys": keys}
    first = ""
    if name == "held":
        first = "from tests.exchanges.servers import Path, hold_kernels; "
        first += f"hold_kernels(Path({str(folder)!r})); "
    code = f"{first}from cli.process import main; main()"
    plain = {k: v for k, v in os.environ.items() if not k.startswith("LAYERSTREAM_")}
    process = subprocess.Popen(
        [sys.executable, "-c", code, "serve", *flags],
        stderr=subprocess.PIPE,
        cwd=ROOT,
        env={**plain, "PYTHONPATH": str(ROOT), "LC_ALL": "C.UTF-8"},
    )
    return Server(folder, process, **more)


def _end(server: Server) -> None:
    server.process.terminate()
    try:
        server.process.wait(10)
    except subprocess.TimeoutExpired:
        server.process.kill()
        server.process.wait()
