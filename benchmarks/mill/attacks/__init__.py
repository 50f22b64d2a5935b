"""The attacks by name; each runs until its target's time is over, with a bounded number of connections."""

from collections.abc import Awaitable, Callable

from benchmarks.mill.attacks import (
    administration,
    bodies,
    documents,
    floods,
    headers,
    manners,
    pictures,
    stalls,
)
from benchmarks.mill.target import Target

Attack = Callable[[Target], Awaitable[None]]

ATTACKS: dict[str, Attack] = {
    "sizes": bodies.sizes,
    "repeats": bodies.repeats,
    "documents": documents.documents,
    "nesting": documents.nesting,
    "stalls_before": stalls.before_the_body,
    "stalls_half": stalls.half_of_the_body,
    "stalls_after_10_mib": stalls.after_ten_mib,
    "dribbled_bodies": stalls.dribbled_bodies,
    "slow_readers": stalls.slow_readers,
    "bodies_by_hundreds": stalls.bodies_by_hundreds,
    "idle": stalls.idle,
    "idle_by_thousands": stalls.idle_by_thousands,
    "dribbled_headers": headers.dribbled,
    "headers_by_hundreds": headers.dribbled_by_hundreds,
    "endless_headers": headers.endless,
    "long_header_lines": headers.long_lines,
    "flood": floods.small_requests,
    "flood_of_connections": floods.connections,
    "large_json": floods.large_json,
    "pictures": pictures.pictures,
    "leavers": manners.leavers,
    "pipelines": manners.pipelines,
    "old_clients": manners.old_clients,
    "silly_chunks": manners.silly_chunks,
    "administration": administration.administration,
}
