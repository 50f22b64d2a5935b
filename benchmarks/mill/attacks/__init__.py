"""The attacks by name; each runs until its target's time is over, with a bounded number of connections."""

from collections.abc import Awaitable, Callable

from benchmarks.mill.attacks import (
    administration,
    bodies,
    bombs,
    crowds,
    documents,
    floods,
    headers,
    manners,
    stalls,
    uploaded_pictures,
)
from benchmarks.mill.target import AttackedServer

Attack = Callable[[AttackedServer], Awaitable[None]]

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
    "idle": stalls.idle,
    "idle_10000": crowds.idle,
    "idle_10000_from_one": crowds.idle_from_one,
    "slow_headers_500": crowds.slow_headers,
    "slow_headers_500_from_one": crowds.slow_headers_from_one,
    "slow_bodies_500": crowds.slow_bodies,
    "slow_bodies_500_from_one": crowds.slow_bodies_from_one,
    "dribbled_headers": headers.dribbled,
    "endless_headers": headers.endless,
    "long_header_lines": headers.long_lines,
    "flood": floods.small_requests,
    "flood_of_connections": floods.connections,
    "ten_gigabytes": bombs.ten_gigabytes,
    "compressed_bombs": bombs.compressed,
    "canvases": bombs.canvases,
    "lying_sizes": bombs.lying_sizes,
    "large_json": floods.large_json,
    "pictures": uploaded_pictures.pictures,
    "leavers": manners.leavers,
    "pipelines": manners.pipelines,
    "old_clients": manners.old_clients,
    "silly_chunks": manners.silly_chunks,
    "administration": administration.administration,
}
