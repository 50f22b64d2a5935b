"""What an uploaded model may take until it serves."""

from typing import ClassVar

from pydantic import Field

from server.settings.group import Group, Seconds
from server.settings.sizes import Size


class UploadSettings(Group):
    """What an uploaded model may take until it serves."""

    title: ClassVar[str] = "Uploads"

    max_upload: Size = Field(
        2 << 30, validate_default=True, description="Largest ONNX file that is taken."
    )
    upload_timeout: Seconds = Field(600.0, description="For reading such a file.")
    compile_memory: Size = Field(
        2 << 30,
        validate_default=True,
        description="For compiling one, beside the budget; one is compiled at a time.",
    )
    compile_time: Seconds = Field(1800.0, description="Of the processor, for compiling one.")
