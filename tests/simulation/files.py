"""The repository of a run: packs of two variants a model, which are published, removed and damaged."""

import asyncio
import itertools
import os
import random
import shutil
from collections.abc import AsyncGenerator, Mapping
from pathlib import Path
from typing import Any

from tests.simulation.plan import MODELS

VARIANTS = ("a", "b")
_DAMAGE = b"\x55" * 64


class Files:
    """``folder``: of the repository; ``packs``: where each variant has a folder of packs of all models."""

    def __init__(self, folder: Path, packs: Path) -> None:
        self.folder = folder
        self._packs = packs
        # When files were changed, for the service, which sees by that whether they are others.
        self._times = itertools.count(1_700_000_000_000_000_000 + os.getpid(), 1000)
        self._manifests = {
            (packs / variant / model / "1" / "manifest.json").read_bytes(): variant
            for variant in VARIANTS
            for model in MODELS
        }
        #: Models whose latest version is damaged or gone.
        self.spoiled = {model for model in MODELS if self._is_damaged(model)}
        # Files before they were replaced, in order; None: there was none.
        self._replaced: list[tuple[Path, bytes | None]] = []

    def fill(self) -> None:
        """Put the first version of each model there, unless it is."""
        self.folder.mkdir(exist_ok=True)
        for model in MODELS:
            if not (self.folder / model).exists():
                self._put(model, VARIANTS[0], 1)

    def versions(self, model: str) -> list[int]:
        """Return the versions that are there, ascending."""
        folder = self.folder / model
        names = [path.name for path in folder.iterdir()] if folder.exists() else []
        return sorted(int(name) for name in names if name.isdecimal())

    def publish(self, model: str) -> int:
        """Add a version, of the other variant than the latest one; return its number."""
        versions = self.versions(model)
        latest = versions[-1] if versions else 0
        self._put(model, VARIANTS[latest % 2], latest + 1)
        self.spoiled.discard(model)
        return latest + 1

    def _put(self, model: str, variant: str, version: int) -> None:
        hidden = self.folder / f".{model}-coming"
        shutil.copytree(self._packs / variant / model / "1", hidden)
        for path in sorted(hidden.rglob("*")):
            self._touch(path)
        (self.folder / model).mkdir(exist_ok=True)
        hidden.rename(self.folder / model / str(version))

    def _touch(self, path: Path) -> None:
        time = next(self._times)
        os.utime(path, ns=(time, time))

    def copy(self, source: Path, destination: Path, variant: str) -> bool:
        """Put a pack at ``destination`` for the file ``source``; return False where that is none."""
        if source.read_bytes().startswith(b"bad"):
            return False
        shutil.copytree(self._packs / variant / destination.name / "1", destination / "1")
        for path in sorted(destination.rglob("*")):
            self._touch(path)
        return True

    def remove(self, model: str) -> None:
        """Remove the latest version, unless it is the only one."""
        versions = self.versions(model)
        if len(versions) > 1:
            gone = self.folder / model / str(versions[-1])
            hidden = self.folder / f".{model}-gone"
            gone.rename(hidden)
            shutil.rmtree(hidden)

    def damage(self, model: str) -> None:
        """Write other bytes to the weights of the latest version, in place."""
        versions = self.versions(model)
        if versions:
            path = self._weights(model, versions[-1])
            with path.open("r+b") as file:
                file.seek(path.stat().st_size // 2)
                file.write(_DAMAGE)
            self._touch(path)
            self.spoiled.add(model)

    def _weights(self, model: str, version: int) -> Path:
        return self.folder / model / str(version) / "weights.bin"

    def _is_damaged(self, model: str) -> bool:
        versions = self.versions(model)
        return bool(versions) and _DAMAGE in self._weights(model, versions[-1]).read_bytes()

    def heal(self) -> None:
        """Publish a version of each model whose latest one is damaged."""
        for model in sorted(self.spoiled):
            self.publish(model)

    def variant(self, model: str, version: str) -> str | None:
        """Return the variant of a version; None: it is not there."""
        path = self.folder / model / version / "manifest.json"
        return self._manifests[path.read_bytes()] if path.exists() else None

    # What a crash leaves

    def note_replaced(self, path: Path) -> None:
        """Note that ``path`` is replaced by a rename, which no sync of its folder has made sure."""
        self._replaced.append((path, path.read_bytes() if path.exists() else None))

    def crash(self, rng: random.Random) -> None:
        """Leave what a crash may: renames are taken back, of what was not synced is there only a part."""
        for path, before in reversed(self._replaced):
            if rng.random() < 0.5:
                path.unlink(missing_ok=True)
                if before is not None and path.parent.is_dir():  # else its folder was removed
                    path.write_bytes(before)
        for path in sorted(self.folder.rglob(".*.part")):
            os.truncate(path, rng.randrange(path.stat().st_size + 1))

    def leftovers(self) -> list[str]:
        """Return what is in the repository and belongs to no model."""
        paths = [path for path in self.folder.rglob("*") if path.name.startswith(".")]
        return [str(path.relative_to(self.folder)) for path in sorted(paths)]


class FakeCompiler:
    """Stands in for the process that compiles an uploaded file: it takes its time, and copies a pack."""

    def __init__(self, files: Files, rng: random.Random) -> None:
        self._files, self._rng = files, rng

    async def compiled(
        self, source: Path, destination: Path, shapes: Mapping[str, tuple[int, ...]]
    ) -> AsyncGenerator[Any]:
        """As the real one."""
        from server.errors import InvalidRequestError
        from server.repository.compiling_child import UploadStep

        yield UploadStep("compile")
        await asyncio.sleep(self._rng.uniform(0, 0.05))
        if not self._files.copy(source, destination, self._rng.choice(VARIANTS)):
            raise InvalidRequestError("no ONNX file")
        yield UploadStep("check")
