"""Run where the package kserve is: builds what YAML files describe of the classes of kserve and kubernetes.

All of it is printed as JSON. A field that these do not have, or of another type, is an error.
"""

import json
import re
import sys
from pathlib import Path
from typing import Any

import kserve
import kubernetes
import yaml

_KINDS = {
    "ClusterServingRuntime": kserve.V1alpha1ClusterServingRuntime,
    "InferenceService": kserve.V1beta1InferenceService,
    "Deployment": kubernetes.client.V1Deployment,
    "Service": kubernetes.client.V1Service,
    "HorizontalPodAutoscaler": kubernetes.client.V2HorizontalPodAutoscaler,
}
_PLAIN: dict[str, Any] = {"str": str, "int": int, "bool": bool, "float": (int, float)}


def built(kind: str, value: Any, place: str) -> Any:
    """Return ``value`` as ``kind``, a type as the generated classes write it."""
    if kind in {"object", "IntOrString"}:
        return value
    if kind in _PLAIN:
        if not isinstance(value, _PLAIN[kind]) or isinstance(value, bool) != (kind == "bool"):
            raise SystemExit(f"{place}: {value!r} is no {kind}")
        return value
    if several := re.fullmatch(r"[lL]ist\[(.+)\]|dict\(str, (.+)\)|Dict\[str, (.+)\]", kind):
        of = several[1] or several[2] or several[3]
        if several[1]:
            return [built(of, each, f"{place}[{i}]") for i, each in enumerate(value)]
        return {name: built(of, each, f"{place}.{name}") for name, each in value.items()}
    found = getattr(kserve.models, kind, None) or getattr(kubernetes.client, kind)
    return instance(found, value, place)


def instance(of: Any, value: dict[str, Any], place: str) -> Any:
    """Return an instance of the generated class ``of``, which checks what must be there."""
    names = {written: name for name, written in of.attribute_map.items()}
    if unknown := set(value) - set(names):
        raise SystemExit(f"{place}: {of.__name__} has no {', '.join(sorted(unknown))}")
    fields = {
        names[key]: built(of.openapi_types[names[key]], each, f"{place}.{key}")
        for key, each in value.items()
    }
    try:
        return of(**fields)
    except ValueError as exc:
        raise SystemExit(f"{place}: {exc}") from exc


if __name__ == "__main__":
    objects = []
    for file in map(Path, sys.argv[1:]):
        for each in yaml.safe_load_all(file.read_text(encoding="utf-8")):
            if each.get("kind") in _KINDS:
                instance(_KINDS[each["kind"]], each, f"{file.name}: {each['kind']}")
            objects.append(each)
    print(json.dumps(objects))
