"""transformers' ``preprocessor_config.json`` of sounds: that of WhisperFeatureExtractor alone has a recipe.

Every setting that changes what is heard has a meaning here, or a reason why it has no recipe.
"""

from collections.abc import Mapping
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from models.errors import first_fault
from models.records import FieldError, read_record
from models.sound.recipe import Sound
from models.text.files import quoted

_WHISPER = "WhisperFeatureExtractor"
_Count = Annotated[int, Field(gt=0, lt=1 << 32)]


class _Extractor(BaseModel):
    """Defaults are those of transformers' class."""

    model_config = ConfigDict(extra="ignore", allow_inf_nan=False)

    feature_size: _Count = 80
    sampling_rate: _Count = 16_000
    hop_length: _Count = 160
    chunk_length: _Count = 30
    n_fft: _Count = 400
    padding_value: float = 0.0
    padding_side: str = "right"
    dither: float = 0.0
    do_normalize: bool | None = None


def read_sound(document: Mapping[str, Any]) -> Sound | None:
    """Return the recipe that ``document`` describes; None: it describes none of a sound.

    Raises:
        ValueError: there is none that does the same.
    """
    nested = document.get("feature_extractor")
    if isinstance(nested, dict):  # processor_config.json
        document = nested
    kind = document.get("feature_extractor_type")
    if kind is None or "sampling_rate" not in document:
        return None
    if kind != _WHISPER:
        raise ValueError(f"feature_extractor_type {quoted(kind)}: no recipe does what it does")
    try:
        read = _Extractor.model_validate(document, strict=True)
    except ValidationError as exc:
        raise ValueError(first_fault(exc)) from exc
    if read.do_normalize:
        raise ValueError("do_normalize: no recipe has it")
    if read.dither:
        raise ValueError("dither: the same sound would not have the same answer")
    if read.padding_value or read.padding_side != "right":
        raise ValueError("padding: a recipe pads with zeros on the right")
    n_samples = read.chunk_length * read.sampling_rate
    if n_samples % read.hop_length:
        raise ValueError(f"hop_length {read.hop_length}: {n_samples} samples are no multiple of it")
    fields = {
        "rate": read.sampling_rate,
        "n_fft": read.n_fft,
        "hop": read.hop_length,
        "bins": read.feature_size,
        "frames": n_samples // read.hop_length,
    }
    try:
        recipe = read_record(Sound, fields)
    except FieldError as exc:
        raise ValueError(str(exc)) from exc
    if recipe.fault:
        raise ValueError(recipe.fault)
    return recipe
