"""Requests and answers as the unmodified ``tritonclient`` makes and reads them, without its sockets."""

from collections.abc import Mapping, Sequence
from typing import Any

import httpx
import numpy as np
import tritonclient.http as triton
from numpy.typing import NDArray
from tritonclient.utils import np_to_triton_dtype

Arrays = Mapping[str, NDArray[Any]]


def tensor(name: str, array: NDArray[Any], is_binary: bool = True) -> Any:
    """An input; of objects: strings."""
    kind = np_to_triton_dtype(array.dtype)
    made = triton.InferInput(name, list(array.shape), kind)
    return made.set_data_from_numpy(array, binary_data=is_binary)


def output(name: str, is_binary: bool = True, classes: int = 0) -> Any:
    return triton.InferRequestedOutput(name, binary_data=is_binary, class_count=classes)


def body(inputs: Sequence[Any], outputs: Sequence[Any] | None = None, **options: Any) -> Any:
    """The body of a request, and the bytes of JSON in it: None where it is all JSON."""
    return triton.InferenceServerClient.generate_request_body(inputs, outputs=outputs, **options)


def sent(
    inputs: Sequence[Any], outputs: Sequence[Any] | None = None, **options: Any
) -> dict[str, Any]:
    """The same as what httpx's ``post`` takes."""
    content, json_bytes = body(inputs, outputs, **options)
    length = {} if json_bytes is None else {"Inference-Header-Content-Length": str(json_bytes)}
    return {"content": content, "headers": length}


def received(answer: httpx.Response) -> Any:
    """The result that the client makes of ``answer``, which httpx has opened if it was compressed."""
    assert answer.status_code == 200, answer.text
    length = answer.headers.get("inference-header-content-length")
    return triton.InferResult.from_response_body(answer.content, header_length=length)


def plain(array: NDArray[Any]) -> Any:
    """``array`` as something that is equal exactly where its bits are; bytes are text."""
    if array.dtype != object:
        return array.dtype, array.shape, array.tobytes()
    texts = [text.decode() if isinstance(text, bytes) else text for text in array.flat]
    return array.shape, texts


def strings(*texts: str) -> NDArray[Any]:
    array = np.empty(len(texts), object)
    array[:] = texts
    return array
