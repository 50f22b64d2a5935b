"""Profiles in which rows take what they should, and tiles so many times as much."""

from models.packs.manifest import Manifest
from pipeline.profiles.profile import Profile
from pipeline.profiles.row_kernels import (
    MANY_RUNS_KEY,
    MEASURED_COPIES,
    copy_key,
    measured_rows,
    measured_tiles,
    row_key,
    tile_key,
)
from pipeline.program.steps import row_network
from tests.pipeline.made_profiles import always, profile

_CALL_SECONDS, _ROW_SECONDS, _COPY_SECONDS = 1e-5, 1e-5, 1e-6


def timed_profile(manifest: Manifest, tiles: float | None) -> Profile:
    """Return a profile where a call takes a time, and each row as much; tiles ``tiles`` times their share.

    None: tiles were not measured. Whole pieces take what they take where all is alike.
    """
    network, seconds = row_network(manifest), {}
    for number, item in enumerate(network.operators):
        value = network.values[item.output]
        for rows in measured_rows(value, item):
            seconds[row_key(number, rows)] = _CALL_SECONDS + rows * _ROW_SECONDS
        for rows, columns in measured_tiles(value, item) if tiles is not None else ():
            share = columns / value.shape[3]
            taken = _CALL_SECONDS + rows * share * _ROW_SECONDS
            seconds[tile_key(number, rows, columns)] = (tiles or 0.0) * taken
    seconds |= {copy_key(n_bytes): _COPY_SECONDS for n_bytes in MEASURED_COPIES}
    if tiles is not None:
        seconds[MANY_RUNS_KEY] = _COPY_SECONDS
    made = profile(manifest)
    kernels = {**made.kernels, **{key: always(each) for key, each in seconds.items()}}
    return made.model_copy(update={"kernels": kernels})
