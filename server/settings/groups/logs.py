"""What is said of requests, and where."""

import re
from typing import Annotated, ClassVar, Literal

from pydantic import Field, field_validator

from server.errors import shown
from server.settings.group import Default, Group, Takes

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
