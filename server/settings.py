"""Settings of the service: flags first, then LAYERSTREAM_* variables, then a TOML file, then defaults."""

import os
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field, PositiveFloat, PositiveInt, ValidationError, field_validator
from pydantic_settings import (
    BaseSettings,
    NoDecode,
    PydanticBaseSettingsSource,
    SettingsConfigDict,
    TomlConfigSettingsSource,
)

from pipeline.architectures import ARCHITECTURES
from pipeline.devices.cuda.choices import Kind, Precision
from pipeline.devices.find import check_name
from server.sizes import Size, parse_size

CONFIG_VARIABLE = "LAYERSTREAM_CONFIG"


class SettingsError(Exception):
    """A setting is missing or not what it should be; the message names it."""


class Settings(BaseSettings):
    """Everything an operator can choose. Sizes take units, times are seconds."""

    model_config = SettingsConfigDict(env_prefix="LAYERSTREAM_", extra="forbid", frozen=True)

    repository: Path = Field(description="folder of packs: NAME/VERSION")
    budget: Size = Field(description="memory that all models and their requests may take")
    request_memory: Size | None = Field(
        None, description="of it, for requests in flight; default an eighth, or what they need"
    )
    host: str = "127.0.0.1"
    allow_admin: bool = Field(False, description="load and unload for other machines, too")
    port: int = Field(8080, ge=0, le=65535, description="0 takes a free port")
    models: Annotated[tuple[str, ...], NoDecode] = Field(
        (), description="serve only these (in a variable: separated by commas); empty: all"
    )
    architecture: str = "auto"
    device: str = "cpu"
    memory_kind: Kind | None = Field(None, description="CUDA: how weights reach kernels")
    precision: Precision = Field("fp32", description="CUDA: of convolutions")
    recompile: bool = Field(False, description="CUDA: take packs for another capability")
    threads: PositiveInt | None = Field(None, description="compute threads; default one a core")
    verify: Literal["first", "always"] = "first"
    exit_on_error: bool = Field(False, description="end when one of the models cannot be served")
    queue_limit: PositiveInt = 16
    request_timeout: PositiveFloat = 30.0
    drain_timeout: PositiveFloat = 30.0
    max_body: Size = Field(64 << 20, validate_default=True)
    max_connections: PositiveInt = 256
    max_connections_per_address: PositiveInt | None = Field(
        None, description="default half of max_connections"
    )
    header_timeout: PositiveFloat = Field(10.0, description="for the header of a request")
    idle_timeout: PositiveFloat = Field(75.0, description="between requests of a connection")
    stall_timeout: PositiveFloat = Field(
        10.0, description="without progress of a body or an answer"
    )
    max_image_pixels: PositiveInt = 64_000_000
    access_log: Literal["errors", "all"] = Field(
        "errors", description="a line for requests that failed, or for all but probes and scrapes"
    )
    log_format: Literal["json", "text"] = "json"

    @field_validator("budget", "request_memory", "max_body", mode="before")
    @classmethod
    def _size(cls, value: object) -> object:
        return parse_size(value) if isinstance(value, str) else value

    @field_validator("models", mode="before")
    @classmethod
    def _names(cls, value: object) -> object:
        return tuple(value.split(",")) if isinstance(value, str) else value

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

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,
        file_secret_settings: PydanticBaseSettingsSource,
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        """Add the TOML file that ``load_settings`` named, below the environment."""
        file = os.environ.get(CONFIG_VARIABLE)
        toml = (TomlConfigSettingsSource(settings_cls, Path(file)),) if file else ()
        return (init_settings, env_settings, *toml)


def load_settings(flags: dict[str, Any], config: Path | None = None) -> Settings:
    """Return the settings from ``flags`` (None values count as absent), environment and file.

    Raises:
        SettingsError: a value is missing or wrong, or the file cannot be read.
    """
    given = {name: value for name, value in flags.items() if value is not None}
    if config is not None:
        os.environ[CONFIG_VARIABLE] = str(config)
    file = os.environ.get(CONFIG_VARIABLE)
    if file and not Path(file).is_file():
        raise SettingsError(f"{file}: no such configuration file")
    try:
        return Settings(**given)
    except ValidationError as exc:
        first = exc.errors()[0]
        name = ".".join(str(part) for part in first["loc"])
        message = first["msg"].removeprefix("Value error, ")
        if first["type"] == "missing":
            flag = f"--{name.replace('_', '-')}"
            message = f"not given; use {flag} or LAYERSTREAM_{name.upper()}"
        raise SettingsError(f"{name}: {message}") from exc
    except ValueError as exc:  # tomllib's error is one
        raise SettingsError(f"{file or 'settings'}: {exc}") from exc
