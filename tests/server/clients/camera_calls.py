"""What programs of cameras ask, in an environment of their own: ``PORT PICTURE KEY [PLUGIN PATH]``.

PLUGIN: Frigate's detector, unmodified, that asks PATH; what it imports of Frigate is stood in for. Prints
JSON: what each found, what it said of what it was refused, and how many connections the plugin made.
"""

import importlib.util
import json
import logging
import sys
import threading
import types
from pathlib import Path
from typing import Any

import numpy as np
import requests
from codeprojectai.core import CodeProjectAIException, CodeProjectAIObject
from deepstack_sdk import Detection, ServerConfig
from PIL import Image
from pydantic import BaseModel

PORT, PICTURE, KEY = int(sys.argv[1]), Path(sys.argv[2]), sys.argv[3]
PLUGIN, ASKED = (Path(sys.argv[4]), sys.argv[5]) if len(sys.argv) > 4 else (None, "")
BASE = f"http://localhost:{PORT}"
LABELS = ("rbc", "wbc", "platelets")
FRAMES, CALLERS = 20, 12


class DetectionApi:
    """As Frigate's base class: nothing that the plugin uses."""


class Labels(BaseModel):
    """What the plugin reads of Frigate's ModelConfig."""

    merged_labelmap: dict[int, str]


class BaseDetectorConfig(BaseModel):
    """The fields of Frigate's that the plugin uses."""

    model: Labels


def plugin() -> Any:
    """Frigate's module, from its file."""
    assert PLUGIN is not None
    for name, found in (
        ("frigate", {}),
        ("frigate.detectors", {}),
        ("frigate.detectors.detection_api", {"DetectionApi": DetectionApi}),
        ("frigate.detectors.detector_config", {"BaseDetectorConfig": BaseDetectorConfig}),
    ):
        sys.modules[name] = types.ModuleType(name)
        vars(sys.modules[name]).update(found)
    spec = importlib.util.spec_from_file_location("frigate_deepstack", PLUGIN)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def frigate() -> dict[str, Any]:
    """Boxes of a frame, with the plugin's own limit of 0.1 s; lines that it logged."""
    said: list[str] = []
    module = plugin()
    module.logger.addHandler(handler := logging.Handler())
    handler.emit = lambda record: said.append(record.getMessage())  # type: ignore[method-assign]
    url = BASE + ASKED
    labels = Labels(merged_labelmap=dict(enumerate(LABELS)))
    config = module.DeepstackDetectorConfig(
        type="deepstack", api_url=url, api_key=KEY, model=labels
    )
    detector = module.DeepStack(config)
    frame = np.asarray(Image.open(PICTURE).convert("RGB").resize((224, 224)))[None]
    found = [detector.detect_raw(frame) for _ in range(FRAMES)]
    pools = detector.session.get_adapter(url).poolmanager.pools
    detector.api_key = "lsk_wrong"
    refused = detector.detect_raw(frame)
    return {
        "boxes": [each.tolist() for each in found],
        "refused": refused.tolist(),
        "connections": sum(pools[key].num_connections for key in list(pools.keys())),
        "said": said,
    }


def deepstack() -> dict[str, Any]:
    """Of both paths, and what a wrong key and a file that is no picture come to."""
    config = ServerConfig(BASE, KEY)
    image = PICTURE.read_bytes()
    drawn = str(PICTURE.with_name("drawn.png"))

    def boxes(name: str | None) -> list[dict[str, Any]]:
        response = Detection(config, name).detectObject(image, min_confidence=0.4, output=drawn)
        return [vars(each) for each in response]

    def failed(config: ServerConfig, image: bytes) -> str:
        try:
            Detection(config).detectObject(image)
        except Exception as exc:  # noqa: BLE001  # it raises no other
            return str(exc)
        return ""

    refused = [failed(ServerConfig(BASE, "lsk_wrong"), image), failed(config, b"none")]
    return {"detection": boxes(None), "custom": boxes("cells"), "refused": refused}


def codeproject() -> dict[str, Any]:
    """It sends no key: its server has none."""

    def asked(**options: Any) -> list[dict[str, Any]] | str:
        try:
            client = CodeProjectAIObject(port=PORT, min_confidence=0.4, **options)
            found: list[dict[str, Any]] = client.detect(PICTURE.read_bytes())
        except CodeProjectAIException as exc:
            return str(exc)
        return found

    return {
        "detection": asked(),
        "custom": asked(custom_model="cells"),
        "nobody": asked(custom_model="nobody"),
    }


def crowd() -> dict[str, Any]:
    """Answers to more at once than the server has places for, by status; what refusals say."""
    statuses: dict[int, int] = {}
    errors: set[str] = set()
    image, turn = PICTURE.read_bytes(), threading.Lock()

    def ask() -> None:
        with requests.Session() as session:
            for _ in range(FRAMES):
                answer = session.post(
                    f"{BASE}/v1/vision/detection", data={"api_key": KEY}, files={"image": image}
                )
                document = answer.json()
                assert document["success"] == (answer.status_code == 200)
                with turn:
                    statuses[answer.status_code] = statuses.get(answer.status_code, 0) + 1
                    errors.update([document["error"]] if "error" in document else [])

    callers = [threading.Thread(target=ask) for _ in range(CALLERS)]
    for caller in callers:
        caller.start()
    for caller in callers:
        caller.join()
    return {"statuses": statuses, "errors": sorted(errors)}


if __name__ == "__main__":
    found: dict[str, Any] = {"deepstack": deepstack(), "crowd": crowd()}
    found["codeproject"] = codeproject()
    if PLUGIN is not None:
        found["frigate"] = frigate()
    print(json.dumps(found))
