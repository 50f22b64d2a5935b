"""Several models in a budget far below their weights, under mixed load: every answer right, memory kept?

Packs of one repository are served in a memory cgroup, a fresh process whose libraries are read from the
disk. Kept connections ask them in any order; every answer is compared with ONNX Runtime's on the model that
the pack was compiled from. The group may hold budget, base and 5 % of both, and no more: base is what the
service takes before it has loaded a model, as it reports it (it is started once before, to ask it). Page
cache is the kernel's to drop; so anonymous memory alone is compared with the anonymous part of the base.
In a run of four minutes or more it may grow by 1 % from the second minute to the last one.

Run as ``python -m benchmarks.many_models [--repository FOLDER --sources FOLDER] [--models A,B,...]``
(sources are NAME.onnx; without, six networks of the zoo are built); exit 1 unless all of it holds.
"""

import argparse
import json
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from benchmarks.load.messages import tensors_document
from benchmarks.load.mixed import AskedModel, LoadResult, MixedLoad
from benchmarks.machine.environment import Environment, copy_environment
from benchmarks.machine.sampling import Sampler, figures, growth
from benchmarks.servers.client import metrics
from benchmarks.servers.served import ours, running
from benchmarks.turns import end
from models import zoo
from models.compiler import compile_onnx
from models.packs.pack import Pack, open_pack
from models.runtime.sessions import open_resident, run_session
from models.sizes import format_size, parse_size
from pipeline.peers.cgroup import memory_group

_NETWORKS = "resnet152,vgg19,darknet53,densenet121,inceptionv2,resnet18"
_PART = 10
_READY_SECONDS = 600.0
_ALLOWED = 1.05
_ALLOWED_GROWTH = 0.01
# As compile compares a pack with its source: of an output's largest value.
_TOLERANCE = 1e-4


def questions(pack: Pack, source: Path, count: int) -> list[AskedModel]:
    """Return ``count`` requests of drawn inputs to ``pack`` with ONNX Runtime's answers of ``source``."""
    session = open_resident(str(source))
    generator = np.random.default_rng(0)
    asked = []
    for _ in range(count):
        # Few digits: what is to be measured is not how long numbers are read.
        drawn = {
            port.name: generator.random(port.shape).round(3)
            for port in pack.manifest.required_inputs
        }
        right = run_session(session, {k: array.astype(np.float32) for k, array in drawn.items()})
        tolerances = {
            name: _TOLERANCE * float(np.abs(array).max()) for name, array in right.items()
        }
        body = json.dumps(tensors_document(drawn)).encode()
        asked.append(AskedModel(pack.name, body, right, tolerances))
    return asked


def measure(
    environment: Environment,
    repository: Path,
    asked: Sequence[AskedModel],
    budget: int,
    options: argparse.Namespace,
) -> dict[str, Any]:
    """Serve, load, and return all figures."""
    models = ",".join(dict.fromkeys(question.model for question in asked))
    command = environment.private([*ours(repository, str(budget)), "--models", models])
    with running(command, "--port", ready_seconds=_READY_SECONDS) as served:
        base = _told(metrics(served.base))
    limit = int(_ALLOWED * (budget + base["base_bytes"]))
    left = environment.drop(repository)
    with (
        memory_group("layerstream-many", limit) as group,
        Sampler(group.usage) as sampler,
        running(group.inside(command), "--port", ready_seconds=_READY_SECONDS) as served,
    ):
        loaded = figures(group.peak_bytes, sampler.samples)
        began = sampler.now()
        load = MixedLoad(served.port, asked, options.connections).run(options.seconds)
        ended = sampler.now()
        try:
            told = _told(metrics(served.base))
        except OSError:  # killed: no answer can come
            told = base
        peaks = figures(group.peak_bytes, sampler.samples)
        kills = group.oom_kills
    return {
        "budget_bytes": budget,
        "limit_bytes": limit,
        "left_in_page_cache_bytes": left,
        "after_loading": loaded,
        "oom_kills": kills,
        **peaks,
        "anonymous_growth": growth(sampler.samples, began, ended),
        **told,
        **_answers(load),
    }


def _told(accounts: Mapping[str, float]) -> dict[str, int]:
    def total(name: str) -> int:
        return int(sum(value for key, value in accounts.items() if key.split("{")[0] == name))

    return {
        "base_bytes": total("layerstream_process_base_bytes"),
        "base_anonymous_bytes": total("layerstream_process_base_anonymous_bytes"),
        "planned_bytes": total("layerstream_budget_used_bytes"),
        "request_memory_bytes": total("layerstream_request_memory_bytes"),
        "counted_bytes": total("layerstream_memory_bytes"),
        "anonymous_bytes": total("layerstream_process_anonymous_bytes"),
        "file_bytes": total("layerstream_process_file_bytes"),
    }


def _answers(load: LoadResult) -> dict[str, Any]:
    return {
        "right": dict(load.right),
        "statuses": {str(status): count for status, count in load.statuses.items()},
        "faults": load.faults[:20],
        "wrong": len(load.faults),
        "seconds": {name: median(delays) for name, delays in load.delays.items()},
    }


def verdict(found: Mapping[str, Any], models: Sequence[str]) -> dict[str, bool]:
    """Return which parts of the claim hold."""
    budget, grown = found["budget_bytes"], found["anonymous_growth"]
    holds = {
        "answers": not found["wrong"] and all(found["right"].get(name) for name in models),
        "memory": not found["oom_kills"] and found["cgroup_peak_bytes"] <= found["limit_bytes"],
        "anonymous_memory": found["anonymous_peak_bytes"]
        <= _ALLOWED * (budget + found["base_anonymous_bytes"]),
    }
    return holds if grown is None else {**holds, "growth": grown <= _ALLOWED_GROWTH}


def _lines(found: Mapping[str, Any], holds: Mapping[str, bool]) -> list[str]:
    sizes = {key: format_size(value) for key, value in found.items() if key.endswith("_bytes")}
    models, right = len(found["models"]), sum(found["right"].values())
    grown = found["anonymous_growth"]
    return [
        f"{models} models, {sizes['weight_bytes']} of weights, budget {sizes['budget_bytes']}, group of "
        f"{sizes['limit_bytes']}: {right} answers right, {found['wrong']} not",
        f"group at most {sizes['cgroup_peak_bytes']}: {sizes['anonymous_peak_bytes']} anonymous, "
        f"{sizes['file_peak_bytes']} of files",
        f"base {sizes['base_bytes']}: {sizes['base_anonymous_bytes']} anonymous; reserved "
        f"{sizes['planned_bytes']}, {sizes['request_memory_bytes']} of it for requests",
        *([] if grown is None else [f"anonymous memory grew by {grown:+.2%} since minute 2"]),
        *(f"{name}: {'holds' if true else 'DOES NOT HOLD'}" for name, true in holds.items()),
        *(["the kernel killed the service: it needed more"] if found["oom_kills"] else []),
        *found["faults"],
    ]


def parsed(parser: argparse.ArgumentParser, networks: str) -> argparse.Namespace:
    """Return what was given, with options that say which networks are asked, and by how many."""
    parser.add_argument("--repository", type=Path)
    parser.add_argument("--sources", type=Path)
    parser.add_argument("--models", default=networks)
    parser.add_argument("--connections", type=int, default=6)
    parser.add_argument("--inputs", type=int, default=3, help="requests of each model")
    options = parser.parse_args()
    if (options.repository is None) != (options.sources is None):
        parser.error("--repository and --sources belong together")
    return options


def asked_models(
    options: argparse.Namespace, folder: Path, resolution: int | None = None
) -> tuple[Path, list[Pack], list[AskedModel]]:
    """Return repository, packs and questions; without a repository networks are built in ``folder``."""
    names = options.models.split(",")
    repository, sources = options.repository, options.sources
    if repository is None:
        repository, sources = folder / "repository", folder
        for name in names:
            source = sources / f"{name}.onnx"
            zoo.build(name, source, resolution=resolution)
            compile_onnx(source, repository / name)
    packs = [open_pack(repository / name) for name in names]
    asked = [
        question
        for pack in packs
        for question in questions(pack, sources / f"{pack.name}.onnx", options.inputs)
    ]
    return repository.resolve(), packs, asked


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--budget", help="default: a tenth of all weights")
    parser.add_argument("--seconds", type=float, default=180.0)
    parser.add_argument("--json", action="store_true")
    return parsed(parser, _NETWORKS)


def main() -> None:
    """Run it and print what came of it."""
    options = _options()
    with tempfile.TemporaryDirectory(dir=".") as text:
        folder = Path(text).resolve()
        repository, packs, asked = asked_models(options, folder)
        weights = sum(pack.manifest.weight_bytes for pack in packs)
        budget = parse_size(options.budget) if options.budget else weights // _PART
        environment = copy_environment(folder / "environment")
        result = measure(environment, repository, asked, budget, options)
    names = [pack.name for pack in packs]
    result |= {"models": names, "weight_bytes": weights}
    holds = verdict(result, names)
    lines = None if options.json else _lines(result, holds)
    end({**result, "holds": holds}, all(holds.values()), lines)


if __name__ == "__main__":
    main()
