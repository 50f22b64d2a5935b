"""Where the service listens, and TLS."""

import re
from pathlib import Path
from typing import Annotated, ClassVar

from pydantic import Field, ValidationInfo, field_validator

from server.errors import shown
from server.settings.group import FILE, Default, Group, Takes

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
