"""Which models are served, from where, and how they run."""

from pathlib import Path
from typing import Annotated, ClassVar, Literal

from pydantic import Field, ValidationInfo, field_validator

from pipeline.devices.cuda.scope import Kind, Precision
from pipeline.devices.find import check_name
from pipeline.schedule.architectures import ARCHITECTURES
from server.settings.group import Default, Group, Names, Seconds
from server.settings.workers import MOST_THREADS, MOST_WORKERS, has_several, parse_workers

_Workers = dict[str, Annotated[int, Field(ge=1, le=MOST_WORKERS)]]


class ModelSettings(Group):
    """Which models are served, from where, and how they run."""

    title: ClassVar[str] = "Models"

    repository: Path = Field(description="Folder of packs: REPOSITORY/NAME/VERSION.")
    model_control: Literal["none", "explicit", "poll"] = Field(
        "explicit",
        description="What changes what is served. none: nothing; explicit: requests to load, unload and "
        "upload; poll: these, and packs that come, change and go in the repository.",
    )
    poll_interval: Seconds = Field(
        5.0, description="Between looks at the repository (model_control poll)."
    )
    models: Annotated[Names, Default("all")] = Field(
        (), description="Serve only these; names separated by commas."
    )
    architecture: str = Field(
        "auto", description=f"How weights stream: {', '.join(ARCHITECTURES)}."
    )
    threads: Annotated[int | None, Default("one a core")] = Field(
        None, ge=1, le=MOST_THREADS, description="Compute threads."
    )
    workers: Annotated[_Workers, Default("1 a model")] = Field(
        {},
        description="Partitions of a model that compute at once, for consecutive requests, each on a "
        "core: 2 of all models, resnet50=2 of one. Then kernels of all models have one thread.",
    )
    verify: Literal["first", "always"] = Field(
        "first", description="Checksums of weights: on the first sweep, or on every one."
    )
    exit_on_error: bool = Field(False, description="End when one of the models cannot be served.")
    device: str = Field("cpu", description="What computes: cpu, cuda, cuda:1, ...")
    memory_kind: Annotated[Kind | None, Default("as the profile found fastest")] = Field(
        None, description="CUDA: how weights reach kernels."
    )
    precision: Precision = Field("fp32", description="CUDA: precision of convolutions.")
    recompile: bool = Field(
        False, description="CUDA: take packs for another compute capability, compile their kernels."
    )

    @field_validator("workers", mode="before")
    @classmethod
    def _workers(cls, value: object) -> object:
        return parse_workers(value)

    @field_validator("workers")
    @classmethod
    def _one_thread_each(cls, value: dict[str, int], info: ValidationInfo) -> dict[str, int]:
        if has_several(value) and info.data.get("threads") not in {None, 1}:
            raise ValueError("each computes with one thread: leave threads out, or say 1")
        return value

    @field_validator("architecture")
    @classmethod
    def _known(cls, value: str) -> str:
        if value not in ARCHITECTURES:
            raise ValueError(f"{value!r} is not one of {', '.join(ARCHITECTURES)}")
        return value

    @field_validator("device")
    @classmethod
    def _device(cls, value: str) -> str:
        return check_name(value)
