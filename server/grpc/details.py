"""Protobuf messages that are written here: fields, and the details of a status with a fault's code.

The details are a google.rpc.Status with one google.rpc.ErrorInfo, as clients of gRPC's richer error model
read them; their package is not needed for that.
"""

import grpc

from server.faults import Fault

#: The metadata that carries details.
KEY = "grpc-status-details-bin"
#: Whose codes they are.
DOMAIN = "layerstream"
_TYPE = b"type.googleapis.com/google.rpc.ErrorInfo"
# Fields of Status, Any and ErrorInfo.
_STATUS_CODE, _STATUS_MESSAGE, _STATUS_DETAILS = 1, 2, 3
_ANY_TYPE, _ANY_VALUE = 1, 2
_REASON, _DOMAIN = 1, 2


def varint(value: int) -> bytes:
    """Return ``value``, at least 0, as protobuf writes integers."""
    data = bytearray()
    while value > 0x7F:
        data.append(value & 0x7F | 0x80)
        value >>= 7
    data.append(value)
    return bytes(data)


def prefix(field: int, n_bytes: int) -> bytes:
    """Return what stands before ``n_bytes`` that are a ``field``."""
    return varint(field << 3 | 2) + varint(n_bytes)


def details(fault: Fault, status: grpc.StatusCode) -> bytes:
    """Return the value of KEY for a call that ``fault`` ends with ``status``."""
    info = _text(_REASON, fault.code.upper()) + _text(_DOMAIN, DOMAIN)
    detail = _field(_ANY_TYPE, _TYPE) + _field(_ANY_VALUE, info)
    code = varint(_STATUS_CODE << 3) + varint(status.value[0])
    return code + _text(_STATUS_MESSAGE, fault.message) + _field(_STATUS_DETAILS, detail)


def _field(field: int, data: bytes) -> bytes:
    return prefix(field, len(data)) + data


def _text(field: int, text: str) -> bytes:
    return _field(field, text.encode())
