"""What a benchmark says of each contender: the rows of ``bench pipeline --json``."""

import statistics
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from models.packs.manifest import Manifest
from pipeline.benchmark.configuration import PlannedConfiguration
from pipeline.benchmark.turns import Samples
from pipeline.peers import ONNXRUNTIME

Tensors = Mapping[str, NDArray[Any]]


def make_rows(samples: Sequence[Samples], manifest: Manifest) -> list[dict[str, Any]]:
    """Return one row a contender; ``pre`` is among them. Times in ms, CPU in seconds, energy in joules."""
    by_name = {each.contender.name: each for each in samples}
    pre, reference = by_name["pre"], by_name.get(ONNXRUNTIME)
    delay = statistics.median(pre.delays)
    lacking = missing_energy(samples)
    return [
        {
            "architecture": each.contender.name,
            "total_bytes": each.contender.planned and each.contender.planned.plan.total_bytes,
            **each.contender.memory,
            "weight_percent": _percent(each, manifest),
            **_equation(each.contender.planned, manifest),
            "delay_ms": spread([seconds * 1e3 for seconds in each.delays]),
            "ratio_to_pre": statistics.median(each.delays) / delay,
            **_predicted(each.contender.planned),
            "stall_ms": statistics.median(each.stalls) * 1e3,
            "read_bytes": each.contender.read_bytes,
            "cpu_seconds": statistics.median(each.cpu),
            "max_relative_error": reference and relative_error(each.outputs, reference.outputs),
            "equal_to_pre": equal(each.outputs, pre.outputs),
            # All rows or none: rows with different runs missing would not compare.
            "energy_joules": None if lacking else spread(_joules(each)),
        }
        for each in samples
    ]


def spread(values: Sequence[float]) -> dict[str, float]:
    """Return median, 95th percentile and maximum."""
    return {
        "median": statistics.median(values),
        "p95": float(np.percentile(values, 95)),
        "max": max(values),
    }


def missing_energy(samples: Sequence[Samples]) -> str | None:
    """Return why a run has no energy, None where all have."""
    energies = (energy for each in samples for energy in each.energies)
    return next((energy.source for energy in energies if energy.joules is None), None)


def relative_error(outputs: Tensors, expected: Tensors) -> float | None:
    """Return the largest difference relative to the largest value of its output.

    None where the two are not the same tensors of numbers.
    """
    errors = [0.0]
    for name, array in expected.items():
        other = outputs.get(name)
        if other is None or other.shape != array.shape or array.dtype.kind not in "fiu":
            return None
        a, b = np.asarray(other, np.float64), np.asarray(array, np.float64)
        scale = float(np.abs(b).max(initial=0.0)) or 1.0
        errors.append(float(np.abs(a - b).max(initial=0.0)) / scale)
    return max(errors)


def equal(outputs: Tensors, expected: Tensors) -> bool:
    """Return whether the outputs are the same, to the last bit."""
    return set(outputs) == set(expected) and all(
        outputs[name].dtype == array.dtype
        and outputs[name].shape == array.shape
        and outputs[name].tobytes() == array.tobytes()
        for name, array in expected.items()
    )


def _percent(samples: Samples, manifest: Manifest) -> float | None:
    weights = manifest.weight_bytes
    return 100 * samples.contender.memory["weight_bytes"] / weights if weights else None


def _equation(planned: PlannedConfiguration | None, manifest: Manifest) -> dict[str, Any]:
    """Return the memory equation of seed 003, with our chunks and with whole layers as there."""
    if planned is None or not planned.plan.architecture.equation:
        return {"equation": None, "equation_bytes": None, "equation_layer_bytes": None}
    architecture = planned.plan.architecture
    base = manifest.weight_bytes if architecture.resident else manifest.largest_layer_bytes
    return {
        "equation": architecture.equation,
        "equation_bytes": planned.plan.equation_bytes,
        "equation_layer_bytes": architecture.factor * base,
    }


def _predicted(planned: PlannedConfiguration | None) -> dict[str, Any]:
    prediction = None if planned is None else planned.fitted.prediction
    return {
        "predicted_ms": None if prediction is None else prediction.delay_ms,
        "bound_ms": None if prediction is None else prediction.bound_ms,
    }


def _joules(samples: Samples) -> list[float]:
    return [energy.joules for energy in samples.energies if energy.joules is not None]
