"""What clients may take: time, connections, bytes."""

from ipaddress import ip_network
from typing import Annotated, ClassVar

from pydantic import Field, PositiveInt, ValidationInfo, field_validator

from server.errors import shown
from server.settings.group import Default, Group, Names, Seconds
from server.settings.sizes import Size


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
    def _is_somebodys(cls, value: bool, info: ValidationInfo) -> bool:
        # Where trusted_proxies is wrong, that is what is said.
        if value and not info.data.get("trusted_proxies", True):
            raise ValueError("true, and trusted_proxies names none whose PROXY header is read")
        return value
