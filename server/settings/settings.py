"""Settings of the service: flags first, then LAYERSTREAM_* variables, then a TOML file, then defaults.

A setting has one name: flag, variable and key of the file are made of it. What is said of it anywhere is
its description here (server/settings/table.py).
"""

import logging
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import (
    Field,
    PositiveInt,
    ValidationError,
    ValidationInfo,
    field_validator,
)
from pydantic_settings import BaseSettings, NoDecode, SettingsConfigDict

from pipeline.devices.cuda.choices import Kind, Precision
from pipeline.devices.find import check_name
from pipeline.schedule.architectures import ARCHITECTURES
from server.errors import shown
from server.settings.lanes import check_lanes, check_preferred
from server.settings.per_model import ALL, parse_per_model, whole
from server.settings.sizes import Size, parse_size
from server.settings.sources import PREFIX, Sources, read_file, unknown_variables, variables
from server.settings.workers import has_several, parse_workers

_log = logging.getLogger(__name__)

CONFIG_VARIABLE = f"{PREFIX}CONFIG"
_MODE = re.compile("0?[0-7]{3}")
_URL = re.compile(r"https?://[^\s/]+(/\S*)?")
#: More than any machine has use for.
MOST_THREADS = 1024
#: Of one model: each has a core.
MOST_WORKERS = 64
#: Of one sweep: each has an arena.
MOST_LANES = 64
#: A year: what waits for longer waits for ever, and timers end somewhere.
Seconds = Annotated[float, Field(gt=0, le=366 * 86_400)]
_Workers = dict[str, Annotated[int, Field(ge=1, le=MOST_WORKERS)]]
_Lanes = dict[str, Annotated[int, Field(ge=1, le=MOST_LANES)]]
_SIZES = ("budget", "request_memory", "max_body", "max_upload", "compile_memory")


class SettingsError(Exception):
    """A setting is missing or not what it should be; the message names it, and where it was given."""


@dataclass(frozen=True)
class Panel:
    """Where a setting stands in ``serve --help`` and in the table of settings."""

    title: str


@dataclass(frozen=True)
class Default:
    """What an absent value means, in words."""

    words: str


@dataclass(frozen=True)
class Takes:
    """What a value is, in a word, where its type does not say."""

    word: str


_MEMORY = Panel("Memory")
_MODELS = Panel("Models")
_SCHEDULING = Panel("Scheduling")
_NETWORK = Panel("Network")
_ACCESS = Panel("Access")
_FILE = Takes("FILE")
_LIMITS = Panel("Limits")
_UPLOADS = Panel("Uploads")
_LOGS = Panel("Logs")


def split_names(text: str) -> tuple[str, ...]:
    """Return the names in ``text``, which commas separate."""
    return tuple(name.strip() for name in text.split(",") if name.strip())


class Settings(BaseSettings):
    """Everything an operator can choose. Sizes take units, times are seconds."""

    model_config = SettingsConfigDict(env_prefix=PREFIX, extra="forbid", frozen=True)

    budget: Annotated[Size, _MEMORY] = Field(
        description="Memory for all models and their requests."
    )
    request_memory: Annotated[
        Size | None,
        _MEMORY,
        Default("an eighth of the budget up to 64MiB, more where models need it"),
    ] = Field(None, description="Part of the budget for requests in flight.")
    activations: Annotated[Literal["auto", "own", "shared"], _MEMORY] = Field(
        "auto",
        description="Memory of activations. own: each model has its own, one reads while another computes; "
        "shared: they run in turns in that of the largest; auto: in turns if more models fit so.",
    )

    budget_policy: Annotated[Literal["refuse", "evict-lru"], _MEMORY] = Field(
        "refuse",
        description="What a load that does not fit comes to. refuse: an error; evict-lru: models that no "
        "request has used for longest go, and the next request to one loads it again.",
    )
    evictable: Annotated[tuple[str, ...], NoDecode, _MEMORY, Default("all")] = Field(
        (ALL,), description="Models that may go so; names separated by commas."
    )

    repository: Annotated[Path, _MODELS] = Field(
        description="Folder of packs: REPOSITORY/NAME/VERSION."
    )
    model_control: Annotated[Literal["none", "explicit", "poll"], _MODELS] = Field(
        "explicit",
        description="What changes what is served. none: nothing; explicit: requests to load, unload and "
        "upload; poll: these, and packs that come, change and go in the repository.",
    )
    poll_interval: Annotated[Seconds, _MODELS] = Field(
        5.0, description="Between looks at the repository (model_control poll)."
    )
    models: Annotated[tuple[str, ...], NoDecode, _MODELS, Default("all")] = Field(
        (), description="Serve only these; names separated by commas."
    )
    architecture: Annotated[str, _MODELS] = Field(
        "auto", description=f"How weights stream: {', '.join(ARCHITECTURES)}."
    )
    threads: Annotated[int | None, _MODELS, Default("one a core")] = Field(
        None, ge=1, le=MOST_THREADS, description="Compute threads."
    )
    workers: Annotated[_Workers, NoDecode, _MODELS, Default("1 a model")] = Field(
        {},
        description="Partitions of a model that compute at once, for consecutive requests, each on a "
        "core: 2 of all models, resnet50=2 of one. Then kernels of all models have one thread.",
    )
    verify: Annotated[Literal["first", "always"], _MODELS] = Field(
        "first", description="Checksums of weights: on the first sweep, or on every one."
    )
    exit_on_error: Annotated[bool, _MODELS] = Field(
        False, description="End when one of the models cannot be served."
    )
    device: Annotated[str, _MODELS] = Field(
        "cpu", description="What computes: cpu, cuda, cuda:1, ..."
    )
    memory_kind: Annotated[Kind | None, _MODELS, Default("as the profile found fastest")] = Field(
        None, description="CUDA: how weights reach kernels."
    )
    precision: Annotated[Precision, _MODELS] = Field(
        "fp32", description="CUDA: precision of convolutions."
    )
    recompile: Annotated[bool, _MODELS] = Field(
        False, description="CUDA: take packs for another compute capability, compile their kernels."
    )

    deadline: Annotated[
        dict[str, Seconds], NoDecode, _SCHEDULING, Default("as request_timeout")
    ] = Field(
        {},
        description="For an answer where the request has no timeout. What can't be answered by then is "
        "refused at once.",
    )
    lanes: Annotated[_Lanes, NoDecode, _SCHEDULING, Default("1 a model")] = Field(
        {},
        description="Requests that one sweep of a model carries at most, so that weights are read once for "
        "all; each takes an arena of the budget, and there are as many as have room.",
    )
    preferred_lanes: Annotated[_Lanes, NoDecode, _SCHEDULING, Default("as lanes")] = Field(
        {}, description="Requests at which a sweep waits for no more."
    )
    lane_delay: Annotated[dict[str, Seconds], NoDecode, _SCHEDULING, Default("0 of each model")] = (
        Field({}, description="How long a sweep that has room waits for more requests.")
    )

    host: Annotated[str, _NETWORK] = Field(
        "127.0.0.1", description="Address to listen on; 0.0.0.0: every network of the machine."
    )
    port: Annotated[int, _NETWORK] = Field(
        8080, ge=0, le=65535, description="Port to listen on; 0: a free one."
    )
    grpc_port: Annotated[int | None, _NETWORK, Default("no gRPC")] = Field(
        None,
        ge=0,
        le=65535,
        description="Port for gRPC, on the same address; 0: a free one (extra grpc).",
    )
    unix_socket: Annotated[Path | None, _NETWORK, _FILE, Default("host and port")] = Field(
        None, description="Unix socket to listen on, instead of host and port."
    )
    unix_socket_mode: Annotated[str, _NETWORK, Takes("MODE")] = Field(
        "660", description="Who may connect to it, as chmod has it."
    )
    tls_certificate: Annotated[Path | None, _NETWORK, _FILE, Default("no TLS")] = Field(
        None,
        description="Certificate and those that vouch for it, in PEM: https, TLS 1.2 or newer.",
    )
    tls_key: Annotated[Path | None, _NETWORK, _FILE, Default("in the file of tls_certificate")] = (
        Field(None, description="Its private key, in PEM, without a passphrase.")
    )

    keys: Annotated[Path | None, _ACCESS, _FILE, Default("no keys are asked for")] = Field(
        None,
        description="File of keys (layerstream key add); every request but health probes wants one.",
    )
    public_metrics: Annotated[bool, _ACCESS] = Field(
        False, description="With keys: /metrics wants none."
    )
    allow_admin: Annotated[bool, _ACCESS] = Field(
        False, description="Without keys: let other machines load and unload models, too."
    )

    queue_limit: Annotated[PositiveInt, _LIMITS] = Field(
        16, description="Requests that may wait for a model, for memory, for a photograph's turn."
    )
    request_timeout: Annotated[Seconds, _LIMITS] = Field(
        30.0, description="For reading a request, and for answering it."
    )
    drain_timeout: Annotated[Seconds, _LIMITS] = Field(
        30.0, description="For requests in flight after SIGTERM."
    )
    header_timeout: Annotated[Seconds, _LIMITS] = Field(
        10.0, description="For the header of a request."
    )
    idle_timeout: Annotated[Seconds, _LIMITS] = Field(
        75.0, description="Between requests of a connection."
    )
    stall_timeout: Annotated[Seconds, _LIMITS] = Field(
        10.0, description="Without progress of a body or an answer."
    )
    max_connections: Annotated[PositiveInt, _LIMITS] = Field(
        256, description="Connections at a time."
    )
    max_connections_per_address: Annotated[
        PositiveInt | None, _LIMITS, Default("as many as are free")
    ] = Field(
        None,
        description="Connections at a time from one address; of IPv6: from one network of 2^64.",
    )
    max_body: Annotated[Size, _LIMITS] = Field(
        64 << 20, validate_default=True, description="Largest body of a request."
    )
    max_image_pixels: Annotated[PositiveInt, _LIMITS] = Field(
        64_000_000, description="Largest image, in pixels; a larger JPEG is decoded smaller."
    )

    max_upload: Annotated[Size, _UPLOADS] = Field(
        2 << 30, validate_default=True, description="Largest ONNX file that is taken."
    )
    upload_timeout: Annotated[Seconds, _UPLOADS] = Field(
        600.0, description="For reading such a file."
    )
    compile_memory: Annotated[Size, _UPLOADS] = Field(
        2 << 30,
        validate_default=True,
        description="For compiling one, beside the budget; one is compiled at a time.",
    )
    compile_time: Annotated[Seconds, _UPLOADS] = Field(
        1800.0, description="Of the processor, for compiling one."
    )

    access_log: Annotated[Literal["errors", "all"], _LOGS] = Field(
        "errors",
        description="Requests that get a line: those that failed, or all but probes and scrapes.",
    )
    traces: Annotated[str | None, _LOGS, Takes("URL"), Default("no traces")] = Field(
        None,
        description="Where traces of requests go, OTLP over HTTP (http://localhost:4318/v1/traces; extra "
        "otel).",
    )
    log_format: Annotated[Literal["auto", "json", "text"], _LOGS] = Field(
        "auto", description="Log lines; auto: text on a terminal, JSON elsewhere."
    )

    @field_validator("*", mode="before")
    @classmethod
    def _no_switch(cls, value: object, info: ValidationInfo) -> object:
        is_switch = cls.model_fields[info.field_name or ""].annotation is bool
        if isinstance(value, bool) and not is_switch:
            raise ValueError("true or false is for switches")
        return value

    @field_validator(*_SIZES, mode="before")
    @classmethod
    def _size(cls, value: object) -> object:
        return parse_size(value) if isinstance(value, str) else value

    @field_validator("models", "evictable", mode="before")
    @classmethod
    def _names(cls, value: object) -> object:
        return split_names(value) if isinstance(value, str) else value

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

    @field_validator("traces")
    @classmethod
    def _address(cls, value: str | None) -> str | None:
        if value is not None and not _URL.fullmatch(value):
            raise ValueError(f"{shown(value)} is not an address; write http://HOST:PORT/v1/traces")
        return value

    @field_validator("unix_socket_mode")
    @classmethod
    def _mode(cls, value: str) -> str:
        if not _MODE.fullmatch(value):
            raise ValueError(
                f"{shown(value)} is not a mode; write three digits from 0 to 7, as 660"
            )
        return value

    @field_validator("tls_key")
    @classmethod
    def _of_a_certificate(cls, value: Path | None, info: ValidationInfo) -> Path | None:
        # Where the certificate is wrong, that is what is said.
        if value is not None and info.data.get("tls_certificate", value) is None:
            raise ValueError(f"{str(value)!r} is a key without tls_certificate")
        return value

    @field_validator("tls_certificate")
    @classmethod
    def _over_a_network(cls, value: Path | None, info: ValidationInfo) -> Path | None:
        if value is not None and info.data.get("unix_socket") is not None:
            raise ValueError(f"{str(value)!r}: no TLS on a Unix socket, which has a mode instead")
        return value

    @field_validator("lanes", "preferred_lanes", mode="before")
    @classmethod
    def _by_model(cls, value: object) -> object:
        return parse_per_model(value, whole)

    @field_validator("deadline", "lane_delay", mode="before")
    @classmethod
    def _times_by_model(cls, value: object) -> object:
        return parse_per_model(value, float, "0.2")

    @field_validator("lanes")
    @classmethod
    def _one_request_each(cls, value: dict[str, int], info: ValidationInfo) -> dict[str, int]:
        check_lanes(value, info.data.get("workers", {}))
        return value

    @field_validator("preferred_lanes")
    @classmethod
    def _carried(cls, value: dict[str, int], info: ValidationInfo) -> dict[str, int]:
        check_preferred(value, info.data.get("lanes", {}))
        return value

    @field_validator("host")
    @classmethod
    def _named(cls, value: str) -> str:
        if not value.strip():
            raise ValueError(
                "empty; 127.0.0.1 is this machine only, 0.0.0.0 every network it is in"
            )
        return value.strip()

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


def load_settings(flags: Mapping[str, Any], config: Path | None = None) -> Settings:
    """Return the settings from ``flags`` (None values count as absent), environment and file.

    The file is ``config``, or what LAYERSTREAM_CONFIG names.

    Raises:
        SettingsError: values are missing or wrong, or the file cannot be read.
    """
    given = {name: value for name, value in flags.items() if value is not None}
    named = os.environ.get(CONFIG_VARIABLE, "") if config is None else str(config)
    try:
        file = read_file(Path(named)) if named else None
    except ValueError as exc:
        raise SettingsError(str(exc)) from exc
    sources = Sources(given, variables(os.environ, Settings.model_fields), file)
    try:
        return Settings(**sources.beside_variables(_SIZES))
    except ValidationError as exc:
        raise SettingsError(sources.faults(exc.errors(), Settings.model_fields)) from exc


def warn_of_variables() -> None:
    """Log a warning where the environment has LAYERSTREAM_* variables that are no setting."""
    unknown = unknown_variables(Settings.model_fields)
    if unknown:
        _log.warning("%s", unknown)
