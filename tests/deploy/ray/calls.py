"""Run where Ray is: starts the application of deploy/ray, and prints what it answers as JSON.

python -m tests.deploy.ray.calls REPOSITORY     with "a", and "large", which its budget does not hold
"""

import http.client
import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import ray
import yaml
from application import Arguments, build
from ray import serve
from ray.serve.schema import ServeDeploySchema

from benchmarks.servers.served import free_port

DEPLOY = Path(__file__).parents[3] / "deploy"
VALUES = [0.5] * 768
SHAPE = [1, 3, 16, 16]


def asked(**more: Any) -> bytes:
    tensor = {"name": "image", "shape": SHAPE, "datatype": "FP32", "data": VALUES}
    return json.dumps({"inputs": [tensor], **more}).encode()


def raw() -> tuple[bytes, dict[str, str]]:
    """The same as raw tensors, and asked for so."""
    data = np.asarray(VALUES, np.float32).tobytes()
    tensor = {"name": "image", "shape": SHAPE, "datatype": "FP32"}
    text = json.dumps(
        {
            "inputs": [{**tensor, "parameters": {"binary_data_size": len(data)}}],
            "outputs": [{"name": "logits", "parameters": {"binary_data": True}}],
        }
    ).encode()
    return text + data, {"Inference-Header-Content-Length": str(len(text))}


def main() -> None:
    described = yaml.safe_load((DEPLOY / "ray/serve.yaml").read_text())
    (application,) = ServeDeploySchema.model_validate(described).applications
    Arguments.model_validate(application.args)

    port = free_port()
    budgets = {
        "small": {"budget": "8MiB", "models": ["a"]},
        "tight": {"budget": "700KiB", "models": ["b", "large"]},
    }
    ray.init(
        num_cpus=2,
        object_store_memory=80 << 20,
        include_dashboard=False,
        log_to_driver=False,
    )
    try:
        serve.start(http_options={"host": "127.0.0.1", "port": port})
        serve.run(build(Arguments(repository=Path(sys.argv[1]), budgets=budgets)))
        found = {}
        for name, method, path, body, headers in (
            ("json", "POST", "/v2/models/a/infer", asked(id="7"), {}),
            ("raw", "POST", "/v2/models/a/infer", *raw()),
            ("beside", "POST", "/v2/models/b/infer", asked(), {}),
            ("unknown", "POST", "/v2/models/none/infer", asked(), {}),
            ("get", "GET", "/v2/models/a/infer", b"", {}),
            ("malformed", "POST", "/v2/models/a/infer", b"{", {}),
            ("late", "POST", "/v2/models/a/infer", asked(parameters={"timeout": 1}), {}),
            ("refused", "POST", "/v2/models/large/infer", asked(), {}),
            ("again", "POST", "/v2/models/b/infer", asked(), {}),
            ("live", "GET", "/v2/health/live", b"", {}),
        ):
            connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
            connection.request(method, path, body, headers)
            response = connection.getresponse()
            answer = response.read()
            found[name] = {
                "status": response.status,
                "retry": response.headers["Retry-After"],
                "json_length": response.headers["Inference-Header-Content-Length"],
                "body": answer.decode("latin-1"),
            }
            connection.close()
        print(json.dumps(found))
    finally:
        serve.shutdown()
        ray.shutdown()


if __name__ == "__main__":
    main()
