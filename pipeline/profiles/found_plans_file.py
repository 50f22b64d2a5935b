"""plans.json: plans found for a pack, and what may run on rows in them. Lost, it is searched again.

A question names what its plan was searched on: a profile, or the network alone.

It is a cache: what another planner wrote, or a user edited, is ignored with a warning.
"""

import logging
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated, Literal

from models.network.fields import Checksum
from models.packs.manifest import checksum
from models.packs.pack import Pack
from models.records import Bounds, FieldError, Record, plain, read_json, to_json
from models.whole_files import write_atomically
from pipeline.planning.found_plans import (
    MAX_VARIANTS,
    MOST_PLANS,
    PLANNER_VERSION,
    FoundPlan,
    FoundPlans,
    StoredPlans,
)
from pipeline.planning.row_variant import Variants

FILE = "plans.json"
_MAX_FILE_BYTES = 4 << 20

_log = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class _Document(Record):
    """``planner``: what searched. ``seal``: checksum of the plans as they were written."""

    format_version: Literal[5] = 5
    planner: int
    seal: Checksum
    plans: Annotated[Mapping[str, FoundPlan], Bounds(max_length=MOST_PLANS)]
    variants: Annotated[Mapping[str, Variants], Bounds(max_length=MAX_VARIANTS)] = field(
        default_factory=dict
    )

    def sealed(self) -> "_Document":
        """Return it with the seal of its plans."""
        content = to_json(
            plain({"plans": self.plans, "variants": self.variants}, without_defaults=True)
        )
        return replace(self, seal=checksum(content.encode()))


class KnownFile:
    """The plans in ``path`` that were found by this version."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def load(self, level: int = logging.WARNING) -> StoredPlans:
        """Return what is in the file; nothing where there is no file, or it is damaged."""
        try:
            if self._path.stat().st_size > _MAX_FILE_BYTES:
                raise OSError(f"larger than {_MAX_FILE_BYTES} bytes")
            document = read_json(_Document, self._path.read_bytes())
        except FileNotFoundError:
            return StoredPlans()
        except OSError as exc:
            _log.log(level, "%s: ignored: %s", self._path, exc.strerror or exc)
            return StoredPlans()
        except FieldError as exc:
            _log.log(level, "%s: ignored: %s", self._path, exc)
            return StoredPlans()
        if document.planner != PLANNER_VERSION:
            _log.log(level, "%s: ignored: written by planner %s", self._path, document.planner)
            return StoredPlans()
        if document != document.sealed():
            _log.log(level, "%s: ignored: changed since it was written", self._path)
            return StoredPlans()
        return StoredPlans(document.plans, document.variants)

    def save(self, stored: StoredPlans) -> bool:
        """Write what is ``stored``, all at once; return whether the folder can be written."""
        document = _Document(
            planner=PLANNER_VERSION,
            seal=16 * "0",
            plans=stored.plans,
            variants=stored.variants,
        ).sealed()
        try:
            write_atomically(self._path, to_json(plain(document, without_defaults=True)) + "\n")
        except OSError as exc:  # a repository that the service may only read
            _log.debug("%s: not kept: %s", self._path, exc.strerror or exc)
            return False
        return True


def plans_of(pack: Pack) -> FoundPlans:
    """Return the plans that are known of ``pack``, and are saved beside it."""
    plans = FoundPlans()
    plans.keep_in(KnownFile(pack.folder / FILE))
    return plans
