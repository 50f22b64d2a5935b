"""An answer to the message that it is, each tensor copied once."""

from server.codec.datatypes import datatype
from server.codec.messages import ModelAnswer
from server.codec.raw.writer import raw_bytes, raw_parts
from server.grpc.messages.inference_pb2 import ModelInferResponse, ModelStreamInferResponse

_RAW_FIELD = ModelInferResponse.RAW_OUTPUT_CONTENTS_FIELD_NUMBER
_ANSWER_FIELD = ModelStreamInferResponse.INFER_RESPONSE_FIELD_NUMBER


def encoded(answer: ModelAnswer, in_stream: bool = False) -> bytes:
    """Return ``answer`` as a ModelInferResponse, ``in_stream`` inside of a ModelStreamInferResponse."""
    parts: list[bytes | memoryview] = [_head(answer).SerializeToString()]
    for output in answer.outputs:
        parts.append(_prefix(_RAW_FIELD, raw_bytes(output.array)))
        parts += raw_parts(output.array)
    if in_stream:
        parts.insert(0, _prefix(_ANSWER_FIELD, sum(map(len, parts))))
    return b"".join(parts)


def _head(answer: ModelAnswer) -> ModelInferResponse:
    return ModelInferResponse(
        model_name=answer.model,
        model_version=answer.version,
        id=answer.id or "",
        outputs=[
            ModelInferResponse.InferOutputTensor(
                name=output.name,
                datatype=datatype(str(output.array.dtype)),
                shape=output.array.shape,
            )
            for output in answer.outputs
        ],
    )


def _prefix(field: int, n_bytes: int) -> bytes:
    """Return what stands before ``n_bytes`` that are a ``field``."""
    return _varint(field << 3 | 2) + _varint(n_bytes)


def _varint(value: int) -> bytes:
    found = bytearray()
    while value > 0x7F:
        found.append(value & 0x7F | 0x80)
        value >>= 7
    found.append(value)
    return bytes(found)
