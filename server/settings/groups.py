"""The settings, in the groups in which the table of settings shows them."""

import re
from dataclasses import dataclass
from ipaddress import ip_network
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

from pydantic import (
    BaseModel,
    BeforeValidator,
    ByteSize,
    ConfigDict,
    Field,
    PositiveInt,
    ValidationInfo,
    field_validator,
)
from pydantic_core import PydanticCustomError

from pipeline.devices.names import Kind, Precision, check_name
from pipeline.schedule.architectures import ARCHITECTURES
from server.errors import shown
from server.settings.per_model import (
    ALL,
    MOST_LANES,
    MOST_THREADS,
    MOST_WORKERS,
    has_several,
    of_model,
    parse_per_model,
    parse_pins,
    whole,
)

# What groups of settings share: their base class, and annotations that say more of a field than its type.


class Group(BaseModel):
    """Settings that belong together; ``title``: over them in ``serve --help`` and in the table."""

    # Commands with some of these options read their descriptions only: validators are built when needed.
    model_config = ConfigDict(defer_build=True, validate_default=True)

    title: ClassVar[str]


_SIZE = re.compile(r"\s*[+-]?[\d.]+\s*[a-zA-Z]*\s*")


def _alone(value: Any) -> Any:
    """Return ``value``, where nothing follows the size: pydantic would ignore text behind it."""
    if isinstance(value, str) and not _SIZE.fullmatch(value):
        raise ValueError("not a size")
    return value


Size = Annotated[ByteSize, BeforeValidator(_alone), Field(gt=0)]


@dataclass(frozen=True)
class Default:
    """The words for what an absent value means."""

    words: str


@dataclass(frozen=True)
class Takes:
    """The word for a value in help texts, where its type does not give it."""

    word: str


FILE = Takes("FILE")


def split_names(text: str) -> tuple[str, ...]:
    """Return the names in ``text``, which commas separate."""
    return tuple(name.strip() for name in text.split(",") if name.strip())


def _split(value: object) -> object:
    return split_names(value) if isinstance(value, str) else value


#: At most a year: timers have a limit, and a longer wait is as good as an endless one.
Seconds = Annotated[float, Field(gt=0, le=366 * 86_400)]
#: Names separated by commas.
Names = Annotated[tuple[str, ...], BeforeValidator(_split)]


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
    tune: bool = Field(
        False,
        description="Race plans of a model against each other when no request comes, in the memory that it "
        "has, and serve with the fastest. Of models with a profile (layerstream profile).",
    )
    verify: Literal["first", "always"] = Field(
        "first", description="Checksums of weights: on the first inference, or on every one."
    )
    exit_on_error: bool = Field(False, description="End when one of the models cannot be served.")
    strict_readiness: bool = Field(
        False, description="The server is ready when all models are, as Triton's; else when one is."
    )
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
        return parse_per_model(value, whole)

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


class MemorySettings(Group):
    """Memory for models and their requests, and what a load that does not fit comes to."""

    title: ClassVar[str] = "Memory"

    memory: Annotated[Size | None, Default("no limit on the process itself")] = Field(
        None,
        description="Memory for all of the process: interpreter, libraries, models and requests; what the "
        "process takes by itself is taken off, and the rest is the budget. Instead of budget.",
    )
    budget: Annotated[Size | None, Default("what memory leaves")] = Field(
        None,
        description="Memory for all models and their requests. Give this or memory.",
    )
    request_memory: Annotated[
        Size | None,
        Default("an eighth of the budget up to 64MiB, more where models need it"),
    ] = Field(None, description="Part of the budget for requests in flight.")
    activations: Literal["auto", "own", "shared"] = Field(
        "auto",
        description="Memory of activations. own: each model has its own, one reads while another computes; "
        "shared: they run in turns in that of the largest; auto: in turns if more models fit so.",
    )

    budget_policy: Literal["refuse", "evict-lru"] = Field(
        "refuse",
        description="What a load that does not fit comes to. refuse: an error; evict-lru: the least "
        "recently used models are evicted, and the next request to one loads it again.",
    )
    evictable: Annotated[Names, Default("all")] = Field(
        (ALL,), description="Models that may go so; names separated by commas."
    )

    pin: Annotated[
        dict[str, Annotated[int, Field(ge=0)]],
        Takes("NAMES[=SIZE]"),
        Default("no model"),
    ] = Field(
        {},
        description="Models that are never evicted, nor served in less than SIZE, without one in what "
        "all their weights take; yolov4=64MiB,resnet50.",
    )

    close_after: Annotated[dict[str, Seconds], Default("never closed")] = Field(
        {},
        description="Close a model that no request has used for so long, and give its memory back to the "
        "system; the next request loads it again. 600 of all models, resnet50=600 of one.",
    )

    idle_after: Annotated[dict[str, Seconds], Default("never asleep")] = Field(
        {},
        description="A model that no request has used for so long sleeps: its pages are the system's, its "
        "reservation stays, and the next request reads its weights again. 600 of all, resnet50=600 of one.",
    )

    memory_pressure: Literal["auto", "events", "headroom", "off"] = Field(
        "auto",
        description="Signals, after which models give memory back. events: what systemd or the kernel "
        "reports (PSI) while the system lacks memory; headroom: what the control group and the machine "
        "leave free; auto: both; off: neither.",
    )

    @field_validator("close_after", "idle_after", mode="before")
    @classmethod
    def _idle_times(cls, value: object) -> object:
        return parse_per_model(value, float, "600")

    @field_validator("pin", mode="before")
    @classmethod
    def _pins(cls, value: object) -> object:
        return parse_pins(value)

    @field_validator("budget")
    @classmethod
    def _one_of_two(cls, value: object, info: ValidationInfo) -> object:
        memory = info.data.get("memory", ...)  # ...: its value is wrong and has its own error
        if value is None and memory is None:
            raise PydanticCustomError("missing", "neither", {"instead": "memory"})
        if value is not None and memory is not None and memory is not ...:
            raise ValueError("memory is given, too, and says it: give one of them")
        return value


_Lanes = dict[str, Annotated[int, Field(ge=1, le=MOST_LANES)]]


class SchedulingSettings(Group):
    """Which requests run next, and how many share a sweep."""

    title: ClassVar[str] = "Scheduling"

    deadline: Annotated[dict[str, Seconds], Default("as request_timeout")] = Field(
        {},
        description="For an answer where the request has no timeout. Requests that would miss the deadline "
        "are rejected immediately.",
    )
    lanes: Annotated[_Lanes, Default("1 a model")] = Field(
        {},
        description="Requests answered per pass over the weights of a model (batch size), at most; each "
        "takes an arena of the budget, and there are as many as have room.",
    )
    preferred_lanes: Annotated[_Lanes, Default("as lanes")] = Field(
        {}, description="Requests at which a batch waits for no more."
    )
    lane_delay: Annotated[dict[str, Seconds], Default("0 of each model")] = Field(
        {}, description="How long a batch that has room waits for more requests."
    )

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
        workers = info.data.get("workers", {})
        for model in {**value, **workers}:
            if of_model(value, model, 1) > 1 and of_model(workers, model, 1) > 1:
                raise ValueError(f"{shown(model)} has workers, whose sweeps carry one request each")
        return value

    @field_validator("preferred_lanes")
    @classmethod
    def _carried(cls, value: dict[str, int], info: ValidationInfo) -> dict[str, int]:
        lanes = info.data.get("lanes", {})
        for model in {**value, **lanes}:
            most = of_model(lanes, model, 1)
            wanted = of_model(value, model, most)
            if wanted > most:
                raise ValueError(f"{wanted} of {shown(model)}, whose sweeps carry {most} (lanes)")
        return value


class LimitSettings(Group):
    """What clients may take: time, connections, bytes."""

    title: ClassVar[str] = "Limits"

    queue_limit: PositiveInt = Field(
        16, description="Requests that may wait for a model, for memory."
    )
    request_timeout: Seconds = Field(
        30.0, description="For reading a request, and for answering it."
    )
    drain_timeout: Seconds = Field(30.0, description="For requests in flight after SIGTERM.")
    header_timeout: Seconds = Field(10.0, description="For the header of a request.")
    idle_timeout: Seconds = Field(75.0, description="Between requests of a connection.")
    stall_timeout: Seconds = Field(10.0, description="Without progress of a body or an answer.")
    max_connections: PositiveInt = Field(256, description="Connections at a time.")
    max_connections_per_address: Annotated[PositiveInt | None, Default("as many as are free")] = (
        Field(
            None,
            description="Connections at a time from one address; of IPv6: from one network of 2^64.",
        )
    )
    trusted_proxies: Annotated[Names, Default("no proxies")] = Field(
        (),
        description="Addresses and networks of proxies, unix: those of the Unix socket. A request from one "
        "is of the client that X-Forwarded-For or Forwarded names; none gives way to other addresses.",
    )
    proxy_protocol: bool = Field(
        False,
        description="Connections from trusted_proxies begin with a PROXY header, version 1 or 2, which "
        "names the client. Not those for gRPC.",
    )
    max_body: Size = Field(
        64 << 20, validate_default=True, description="Largest body of a request."
    )
    max_image_pixels: PositiveInt = Field(
        64_000_000, description="Largest image, in pixels; a larger JPEG is decoded smaller."
    )

    @field_validator("trusted_proxies")
    @classmethod
    def _are_networks(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        for name in value:
            try:
                if name != "unix":
                    ip_network(name)
            except ValueError as exc:
                raise ValueError(
                    f"{shown(name)} is no proxy; write an address, a network as 10.0.0.0/8, or unix"
                ) from exc
        return value

    @field_validator("proxy_protocol")
    @classmethod
    def _has_proxies(cls, value: bool, info: ValidationInfo) -> bool:
        # Where trusted_proxies is wrong, that error alone is reported.
        if value and not info.data.get("trusted_proxies", True):
            raise ValueError("true, and trusted_proxies names none whose PROXY header is read")
        return value


_MODE = re.compile("0?[0-7]{3}")


class NetworkSettings(Group):
    """Where the service listens, and TLS."""

    title: ClassVar[str] = "Network"

    host: str = Field(
        "127.0.0.1", description="Address to listen on; 0.0.0.0: every network of the machine."
    )
    port: int = Field(8080, ge=0, le=65535, description="Port to listen on; 0: a free one.")
    grpc_port: Annotated[int | None, Default("no gRPC")] = Field(
        None,
        ge=0,
        le=65535,
        description="Port for gRPC, on the same address; 0: a free one (extra grpc).",
    )
    deepstack: bool = Field(
        False,
        description="Answer programs of cameras, too, in DeepStack's words: POST /v1/vision/detection, "
        "/v1/vision/custom/NAME.",
    )
    deepstack_model: Annotated[str, Default("the only detector")] = Field(
        "", description="What /v1/vision/detection asks."
    )
    unix_socket: Annotated[Path | None, FILE, Default("host and port")] = Field(
        None, description="Unix socket to listen on, instead of host and port."
    )
    unix_socket_mode: Annotated[str, Takes("MODE")] = Field(
        "660", description="Who may connect to it, as chmod has it."
    )
    tls_certificate: Annotated[Path | None, FILE, Default("no TLS")] = Field(
        None,
        description="Certificate and those that vouch for it, in PEM: https, TLS 1.2 or newer.",
    )
    tls_key: Annotated[Path | None, FILE, Default("in the file of tls_certificate")] = Field(
        None, description="Its private key, in PEM, without a passphrase."
    )

    @field_validator("host")
    @classmethod
    def _named(cls, value: str) -> str:
        if not value.strip():
            raise ValueError(
                "empty; 127.0.0.1 is this machine only, 0.0.0.0 every network it is in"
            )
        return value.strip()

    @field_validator("deepstack_model")
    @classmethod
    def _is_asked(cls, value: str, info: ValidationInfo) -> str:
        if value and not info.data.get("deepstack", True):
            raise ValueError(f"{shown(value)} is asked by nobody without deepstack")
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
        # Where the certificate is wrong, that error alone is reported.
        if value is not None and info.data.get("tls_certificate", value) is None:
            raise ValueError(f"{str(value)!r} is a key without tls_certificate")
        return value

    @field_validator("tls_certificate")
    @classmethod
    def _over_a_network(cls, value: Path | None, info: ValidationInfo) -> Path | None:
        if value is not None and info.data.get("unix_socket") is not None:
            raise ValueError(f"{str(value)!r}: no TLS on a Unix socket, which has a mode instead")
        return value


_HOST_NAME = re.compile(r"[A-Za-z0-9_]([A-Za-z0-9._-]{0,253}[A-Za-z0-9_])?")


class AccessSettings(Group):
    """Which requests are answered, and which may change what is served."""

    title: ClassVar[str] = "Access"

    keys: Annotated[Path | None, FILE, Default("no keys are needed")] = Field(
        None,
        description="File of keys (layerstream key add); every request but health probes wants one.",
    )
    public_metrics: bool = Field(False, description="With keys: /metrics wants none.")
    allow_admin: bool = Field(
        False, description="Without keys: let other machines load and unload models, too."
    )
    allowed_hosts: Annotated[
        Names, Default("localhost, host, the machine's name; all addresses are")
    ] = Field(
        (),
        description="Without keys: names under which clients may ask (their Host header), in addition "
        "to the usual ones; *: any.",
    )

    @field_validator("allowed_hosts")
    @classmethod
    def _are_names(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        for name in value:
            if name != "*" and not _HOST_NAME.fullmatch(name):
                raise ValueError(
                    f"{shown(name)} is no name of a host; write it without a port, or * for any"
                )
        return value


class UploadSettings(Group):
    """What an uploaded model may take until it serves."""

    title: ClassVar[str] = "Uploads"

    max_upload: Size = Field(
        2 << 30, validate_default=True, description="Largest ONNX file that is taken."
    )
    upload_timeout: Seconds = Field(600.0, description="For reading such a file.")
    compile_memory: Size = Field(
        2 << 30,
        validate_default=True,
        description="For compiling one, in addition to the budget; one is compiled at a time.",
    )
    compile_time: Seconds = Field(1800.0, description="Of the processor, for compiling one.")


_URL = re.compile(r"https?://[^\s/]+(/\S*)?")


class LogSettings(Group):
    """What is said of requests, and where."""

    title: ClassVar[str] = "Logs"

    access_log: Literal["errors", "all"] = Field(
        "errors",
        description="Requests that get a line: those that failed, or all but probes and scrapes.",
    )
    traces: Annotated[str | None, Takes("URL"), Default("no traces")] = Field(
        None,
        description="Where traces of requests go, OTLP over HTTP (http://localhost:4318/v1/traces; extra "
        "otel).",
    )
    log_format: Literal["text", "json"] = Field(
        "text", description="Log lines: text for people, or a JSON object each."
    )

    @field_validator("traces")
    @classmethod
    def _address(cls, value: str | None) -> str | None:
        if value is not None and not _URL.fullmatch(value):
            raise ValueError(f"{shown(value)} is not an address; write http://HOST:PORT/v1/traces")
        return value
