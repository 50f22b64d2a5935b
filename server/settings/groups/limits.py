"""What clients may take: time, connections, bytes."""

from typing import Annotated, ClassVar

from pydantic import Field, PositiveInt

from server.settings.group import Default, Group, Seconds
from server.settings.sizes import Size


class LimitSettings(Group):
    """What clients may take: time, connections, bytes."""

    title: ClassVar[str] = "Limits"

    queue_limit: PositiveInt = Field(
        16, description="Requests that may wait for a model, for memory, for a photograph's turn."
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
    max_body: Size = Field(
        64 << 20, validate_default=True, description="Largest body of a request."
    )
    max_image_pixels: PositiveInt = Field(
        64_000_000, description="Largest image, in pixels; a larger JPEG is decoded smaller."
    )
