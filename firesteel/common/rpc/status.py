"""The status of a call that failed: its reason, for programs, and a message, for people.

A service ends a call with `abort`. Its client finds the reason with `reason_of`, and decides by
that or by the status code, never by the message. An error without a reason is gRPC's own: the
peer did not answer, or the connection broke.

The reason travels as the `google.rpc.ErrorInfo` of a `google.rpc.Status`, which clients in every
language can read. The reasons are those of proto/errors.proto.
"""

from __future__ import annotations

import base64
from collections.abc import Mapping
from enum import Enum, auto
from types import MappingProxyType
from typing import Any, Final, NamedTuple, NoReturn

import grpc
from google.protobuf.message import DecodeError
from google.rpc import error_details_pb2, status_pb2
from grpc_status import rpc_status

from firesteel.common.config.redaction import hidden
from firesteel.text import clipped, valid_text

DOMAIN = "firesteel"
# A client rejects headers and trailers of more than 8 KiB; gRPC's own need some of it.
MAX_STATUS_BYTES = 7 * 1024
_DETAILS_KEY = "grpc-status-details-bin"  # of every gRPC implementation
_MAX_VALUE_CHARS = 200
_MIN_MESSAGE_CHARS = 64


class Reason(Enum):
    """The values of the enum in proto/errors.proto, which documents each."""

    REASON_UNSPECIFIED = auto()
    NOT_LEADER = auto()
    COORDINATION_UNAVAILABLE = auto()
    STARTING = auto()
    SHUTTING_DOWN = auto()
    NOT_RESPONSIBLE = auto()
    STALE_EPOCH = auto()
    CONNECTION_CLOSED = auto()
    INVALID_REQUEST = auto()
    PAYLOAD_TOO_LARGE = auto()
    BLOBS_MISSING = auto()
    CHECKPOINTS_UNUSABLE = auto()
    UNKNOWN_PROCESS = auto()
    JOB_NOT_FOUND = auto()
    JOB_EXISTS = auto()
    JOB_IN_WRONG_STATE = auto()
    JOB_DATA_GONE = auto()
    BLOB_NOT_FOUND = auto()
    LOG_FILE_NOT_FOUND = auto()
    CHECKPOINT_NOT_TAKEN = auto()
    TRIGGER_NOT_FOUND = auto()
    SAVEPOINT_NOT_DISPOSED = auto()
    CHUNK_OUT_OF_ORDER = auto()
    TASK_EXECUTOR_NOT_FOUND = auto()
    TASK_EXECUTOR_NOT_STOPPED = auto()
    TASK_NOT_FOUND = auto()
    TASK_NOT_RUNNING = auto()
    SLOT_INSPECTED = auto()
    TASK_NOT_INSPECTED = auto()
    INSPECTION_LOST = auto()
    JOB_NOT_RESCALED = auto()
    STORE_UNAVAILABLE = auto()
    OUTCOME_UNKNOWN = auto()
    STORAGE_UNAVAILABLE = auto()
    RESULTS_NOT_STORED = auto()
    DISK_FULL = auto()
    RESOURCE_MANAGER_UNAVAILABLE = auto()
    TASK_EXECUTOR_LOST = auto()
    PEER_TOO_SLOW = auto()
    OVERLOADED = auto()
    INTERNAL_ERROR = auto()
    NO_CREDENTIAL = auto()
    CREDENTIAL_INVALID = auto()
    CREDENTIAL_EXPIRED = auto()
    NOT_ALLOWED = auto()
    DISABLED = auto()
    TOO_MANY_CALLS = auto()


# Generic clients retry UNAVAILABLE, and only that.
STATUS_CODES: Final[Mapping[Reason, grpc.StatusCode]] = MappingProxyType(
    {
        Reason.REASON_UNSPECIFIED: grpc.StatusCode.UNKNOWN,
        Reason.NOT_LEADER: grpc.StatusCode.UNAVAILABLE,
        Reason.COORDINATION_UNAVAILABLE: grpc.StatusCode.UNAVAILABLE,
        Reason.STARTING: grpc.StatusCode.UNAVAILABLE,
        Reason.SHUTTING_DOWN: grpc.StatusCode.UNAVAILABLE,
        Reason.NOT_RESPONSIBLE: grpc.StatusCode.NOT_FOUND,
        Reason.STALE_EPOCH: grpc.StatusCode.FAILED_PRECONDITION,
        Reason.CONNECTION_CLOSED: grpc.StatusCode.ABORTED,
        Reason.INVALID_REQUEST: grpc.StatusCode.INVALID_ARGUMENT,
        Reason.PAYLOAD_TOO_LARGE: grpc.StatusCode.RESOURCE_EXHAUSTED,
        Reason.BLOBS_MISSING: grpc.StatusCode.FAILED_PRECONDITION,
        Reason.CHECKPOINTS_UNUSABLE: grpc.StatusCode.INVALID_ARGUMENT,
        Reason.UNKNOWN_PROCESS: grpc.StatusCode.PERMISSION_DENIED,
        Reason.JOB_NOT_FOUND: grpc.StatusCode.NOT_FOUND,
        Reason.JOB_EXISTS: grpc.StatusCode.ALREADY_EXISTS,
        Reason.JOB_IN_WRONG_STATE: grpc.StatusCode.FAILED_PRECONDITION,
        Reason.JOB_DATA_GONE: grpc.StatusCode.NOT_FOUND,
        Reason.BLOB_NOT_FOUND: grpc.StatusCode.NOT_FOUND,
        Reason.LOG_FILE_NOT_FOUND: grpc.StatusCode.NOT_FOUND,
        Reason.CHECKPOINT_NOT_TAKEN: grpc.StatusCode.FAILED_PRECONDITION,
        Reason.TRIGGER_NOT_FOUND: grpc.StatusCode.NOT_FOUND,
        Reason.SAVEPOINT_NOT_DISPOSED: grpc.StatusCode.FAILED_PRECONDITION,
        Reason.CHUNK_OUT_OF_ORDER: grpc.StatusCode.OUT_OF_RANGE,
        Reason.TASK_EXECUTOR_NOT_FOUND: grpc.StatusCode.NOT_FOUND,
        Reason.TASK_EXECUTOR_NOT_STOPPED: grpc.StatusCode.FAILED_PRECONDITION,
        Reason.TASK_NOT_FOUND: grpc.StatusCode.NOT_FOUND,
        Reason.TASK_NOT_RUNNING: grpc.StatusCode.FAILED_PRECONDITION,
        Reason.SLOT_INSPECTED: grpc.StatusCode.FAILED_PRECONDITION,
        Reason.TASK_NOT_INSPECTED: grpc.StatusCode.FAILED_PRECONDITION,
        Reason.INSPECTION_LOST: grpc.StatusCode.DEADLINE_EXCEEDED,
        Reason.JOB_NOT_RESCALED: grpc.StatusCode.FAILED_PRECONDITION,
        Reason.STORE_UNAVAILABLE: grpc.StatusCode.RESOURCE_EXHAUSTED,
        Reason.OUTCOME_UNKNOWN: grpc.StatusCode.UNAVAILABLE,
        Reason.STORAGE_UNAVAILABLE: grpc.StatusCode.UNAVAILABLE,
        Reason.RESULTS_NOT_STORED: grpc.StatusCode.RESOURCE_EXHAUSTED,
        Reason.DISK_FULL: grpc.StatusCode.RESOURCE_EXHAUSTED,
        Reason.RESOURCE_MANAGER_UNAVAILABLE: grpc.StatusCode.ABORTED,
        Reason.TASK_EXECUTOR_LOST: grpc.StatusCode.ABORTED,
        Reason.PEER_TOO_SLOW: grpc.StatusCode.RESOURCE_EXHAUSTED,
        Reason.OVERLOADED: grpc.StatusCode.RESOURCE_EXHAUSTED,
        Reason.INTERNAL_ERROR: grpc.StatusCode.INTERNAL,
        Reason.NO_CREDENTIAL: grpc.StatusCode.UNAUTHENTICATED,
        Reason.CREDENTIAL_INVALID: grpc.StatusCode.UNAUTHENTICATED,
        Reason.CREDENTIAL_EXPIRED: grpc.StatusCode.UNAUTHENTICATED,
        Reason.NOT_ALLOWED: grpc.StatusCode.PERMISSION_DENIED,
        Reason.DISABLED: grpc.StatusCode.PERMISSION_DENIED,
        Reason.TOO_MANY_CALLS: grpc.StatusCode.RESOURCE_EXHAUSTED,
    }
)


class StatusDetail(NamedTuple):
    """The reason of a refused call, and facts about it."""

    reason: Reason
    metadata: Mapping[str, str]


async def abort(context: Any, reason: Reason, message: str, **metadata: object) -> NoReturn:
    """Ends the call of a `grpc.aio` servicer. The keys of `metadata` are those that
    proto/errors.proto lists.
    """
    status = status_of(reason, message, **metadata)
    await context.abort(status.code, status.details, status.trailing_metadata)
    raise AssertionError("abort raises")


async def pass_on(context: Any, error: grpc.aio.AioRpcError) -> NoReturn:
    """Ends the call of a `grpc.aio` servicer as another service has ended its own."""
    trailing: Any = error.trailing_metadata()
    details = tuple((key, value) for key, value in trailing if key == _DETAILS_KEY)
    await context.abort(error.code(), error.details() or "", details)
    raise AssertionError("abort raises")


def status_of(reason: Reason, message: str, **metadata: object) -> grpc.Status:
    """The status of a refused call, which fits into its trailing metadata: the middle of a message
    that is too long is cut out, and bytes that are not UTF-8 are escaped.
    """
    text = hidden(valid_text(message))
    values = {
        key: hidden(valid_text(clipped(str(value), _MAX_VALUE_CHARS)))
        for key, value in metadata.items()
    }
    info = error_details_pb2.ErrorInfo(reason=reason.name, domain=DOMAIN, metadata=values)
    limit_chars = MAX_STATUS_BYTES
    while True:
        status = status_pb2.Status(
            code=STATUS_CODES[reason].value[0], message=clipped(text, limit_chars)
        )
        status.details.add().Pack(info)
        if _size_bytes(status) <= MAX_STATUS_BYTES or limit_chars <= _MIN_MESSAGE_CHARS:
            return rpc_status.to_status(status)
        limit_chars = limit_chars * 3 // 4


def detail_of(error: BaseException | None) -> StatusDetail | None:
    """Returns the detail of the error of a call; None if `error` is gRPC's own, or not of a
    call. A reason that this version does not know is REASON_UNSPECIFIED.
    """
    if not isinstance(error, grpc.RpcError):
        return None
    call: Any = error  # every RpcError of gRPC has the methods of a Call
    try:
        status = rpc_status.from_call(call)
    except (ValueError, DecodeError):  # a status of another system
        return None
    for detail in status.details if status is not None else ():
        info = error_details_pb2.ErrorInfo()
        if detail.Unpack(info) and info.domain == DOMAIN:
            known = Reason.__members__.get(info.reason, Reason.REASON_UNSPECIFIED)
            return StatusDetail(known, dict(info.metadata))
    return None


def reason_of(error: BaseException | None) -> Reason | None:
    """The reason of `detail_of`."""
    detail = detail_of(error)
    return detail.reason if detail is not None else None


def _size_bytes(status: status_pb2.Status) -> int:
    """The size of the status in the trailing metadata: the message percent-encoded, and the whole
    status in Base64.
    """
    message = sum(
        1 if 0x20 <= byte <= 0x7E and byte != 0x25 else 3 for byte in status.message.encode()
    )
    return message + len(base64.b64encode(status.SerializeToString()))
