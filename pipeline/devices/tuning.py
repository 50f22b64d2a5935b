"""What a device found fastest for a pack by trying; kept in the pack's profile."""

from pydantic import BaseModel, ConfigDict


class Tuning(BaseModel):
    """``memory_kind``: of CUDA's ring; empty: not tried. ``algorithms``: by geometry of convolutions."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    memory_kind: str = ""
    precision: str = ""
    algorithms: dict[str, str] = {}
