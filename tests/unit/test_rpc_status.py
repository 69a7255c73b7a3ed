"""Callers find the reason of a refused call, whatever its message says."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import grpc
import pytest
from google.protobuf.any_pb2 import Any as AnyMessage
from google.rpc import error_details_pb2, status_pb2
from grpc_status import rpc_status

from firesteel._proto import errors_pb2, resource_manager_pb2, resource_manager_pb2_grpc
from firesteel.common.rpc.server import aio_channel, bind, channel, new_server
from firesteel.common.rpc.status import (
    MAX_STATUS_BYTES,
    STATUS_CODES,
    Reason,
    StatusDetail,
    abort,
    detail_of,
    pass_on,
    reason_of,
    status_of,
)

OVERVIEW = resource_manager_pb2.ClusterOverviewRequest()
STOP = resource_manager_pb2.StopTaskExecutorRequest()


class Refusing(resource_manager_pb2_grpc.ResourceManagerServicer):
    def __init__(self, refuse: Any) -> None:
        self._refuse = refuse

    async def GetOverview(self, request: Any, context: Any) -> Any:
        await self._refuse(context)

    async def StopTaskExecutor(self, request: Any, context: Any) -> AsyncIterator[Any]:
        yield resource_manager_pb2.StopTaskExecutorProgress()
        await self._refuse(context)


@asynccontextmanager
async def refusing(refuse: Any) -> AsyncIterator[str]:
    """At the address that it yields."""
    server = new_server([])
    resource_manager_pb2_grpc.add_ResourceManagerServicer_to_server(Refusing(refuse), server)  # type: ignore[no-untyped-call]
    address = bind(server, "127.0.0.1", 0)
    await server.start()
    try:
        yield address
    finally:
        await server.stop(None)


def call(address: str) -> grpc.RpcError:
    """The error of a client that is not asynchronous."""
    with channel(address) as connection:
        stub: Any = resource_manager_pb2_grpc.ResourceManagerStub(connection)  # type: ignore[no-untyped-call]
        with pytest.raises(grpc.RpcError) as refused:
            stub.GetOverview(OVERVIEW)
        with pytest.raises(grpc.RpcError) as ended:
            list(stub.StopTaskExecutor(STOP))
        assert detail_of(ended.value) == detail_of(refused.value)
        return refused.value


async def aio_call(address: str) -> grpc.aio.AioRpcError:
    async with aio_channel(address) as connection:
        stub: Any = resource_manager_pb2_grpc.ResourceManagerStub(connection)  # type: ignore[no-untyped-call]
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await stub.GetOverview(OVERVIEW)
        with pytest.raises(grpc.aio.AioRpcError) as ended:
            async for _ in stub.StopTaskExecutor(STOP):
                pass
        assert detail_of(ended.value) == detail_of(refused.value)
        return refused.value


def test_every_reason_of_the_proto_file_has_a_status_code() -> None:
    assert {reason.name for reason in Reason} == set(errors_pb2.Reason.keys())
    assert STATUS_CODES.keys() == set(Reason)
    assert all(re.fullmatch(r"[A-Z][A-Z0-9_]{1,62}", reason.name) for reason in Reason)
    assert grpc.StatusCode.OK not in STATUS_CODES.values()


def test_the_documentation_has_a_row_for_each_reason() -> None:
    page = Path(__file__).resolve().parents[2] / "docs" / "reference" / "errors.md"
    text = page.read_text()
    raised = re.findall(r"^\| `([A-Z_]+)` \| `?([A-Za-z_]+)`? \| \S.* \|$", text, re.M)
    received = re.findall(r"^\| `([A-Z_]+)` \| [^|]+ \|$", text, re.M)
    codes = {reason.name: code.name for reason, code in STATUS_CODES.items()}
    assert dict(raised) == codes | {"REASON_UNSPECIFIED": "any"}
    assert [reason for reason, _ in raised] == received
    assert len(received) == len(codes)


async def test_clients_of_both_kinds_find_the_reason_and_its_metadata() -> None:
    async def refuse(context: Any) -> None:
        await abort(context, Reason.NOT_LEADER, "I am a standby", leader="there:1", epoch=7)

    async with refusing(refuse) as address:
        for error in (await aio_call(address), await asyncio.to_thread(call, address)):
            found: Any = error
            assert detail_of(error) == StatusDetail(
                Reason.NOT_LEADER, {"leader": "there:1", "epoch": "7"}
            )
            assert found.code() is grpc.StatusCode.UNAVAILABLE
            assert found.details() == "I am a standby"


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("a" * 100_000, r"a{500,}\n\.\.\. \d+ characters omitted \.\.\.\na{500,}"),
        ("ж%\n" * 100_000, r"(?s)ж%\n.*characters omitted.*ж%\n"),
        ("cannot open \ud83d.csv\0", r"cannot open \\ud83d\.csv\\x00"),
        ("", ""),
    ],
    ids=["long", "long when it is encoded", "not UTF-8", "empty"],
)
async def test_a_message_of_any_text_arrives_with_its_reason(text: str, shown: str) -> None:
    async def refuse(context: Any) -> None:
        await abort(context, Reason.JOB_NOT_FOUND, text, job_id=text)

    async with refusing(refuse) as address:
        for error in (await aio_call(address), await asyncio.to_thread(call, address)):
            found: Any = error
            assert reason_of(error) is Reason.JOB_NOT_FOUND
            assert re.fullmatch(shown, found.details())
            sizes = [len(value) for _, value in found.trailing_metadata()]
            assert sum(sizes) < MAX_STATUS_BYTES


async def test_a_service_passes_on_what_another_has_refused() -> None:
    async def refuse(context: Any) -> None:
        await abort(context, Reason.TASK_EXECUTOR_LOST, "100 % lost: ü", task_executor_id="t")

    async def relay(context: Any) -> None:
        await pass_on(context, await aio_call(behind))

    async with refusing(refuse) as behind, refusing(relay) as address:
        error = await aio_call(address)
    assert detail_of(error) == StatusDetail(Reason.TASK_EXECUTOR_LOST, {"task_executor_id": "t"})
    assert (error.code(), error.details()) == (grpc.StatusCode.ABORTED, "100 % lost: ü")


async def test_an_error_of_grpc_itself_has_no_reason() -> None:
    async def refuse(context: Any) -> None:
        await context.abort(grpc.StatusCode.UNAVAILABLE, "Socket closed")

    async with refusing(refuse) as plain:
        assert reason_of(await aio_call(plain)) is None
        relayed = await aio_call(plain)
    assert reason_of(await aio_call(plain)) is None  # the server has stopped
    assert reason_of(ValueError("not of a call")) is None and reason_of(None) is None

    async def relay(context: Any) -> None:
        await pass_on(context, relayed)

    async with refusing(relay) as address:
        error = await aio_call(address)
    assert (reason_of(error), error.details()) == (None, "Socket closed")


def status(*, reason: str = "NOT_LEADER", domain: str = "firesteel", text: str = "no") -> bytes:
    info = error_details_pb2.ErrorInfo(reason=reason, domain=domain)
    details = [AnyMessage(type_url="type.googleapis.com/unknown"), AnyMessage()]
    details[1].Pack(info)
    code = grpc.StatusCode.UNAVAILABLE.value[0]
    return status_pb2.Status(code=code, message=text, details=details).SerializeToString()


@pytest.mark.parametrize(
    ("sent", "found"),
    [
        (status(), Reason.NOT_LEADER),
        (status(reason="OF_A_LATER_VERSION"), Reason.REASON_UNSPECIFIED),
        (status(domain="googleapis.com"), None),
        (status(text="yes"), None),
        (b"\xff\xff\xff", None),
    ],
    ids=["known", "unknown", "another domain", "another message", "damaged"],
)
async def test_statuses_of_other_versions_and_systems(sent: bytes, found: Reason | None) -> None:
    async def refuse(context: Any) -> None:
        await context.abort(
            grpc.StatusCode.UNAVAILABLE, "no", (("x", "y"), ("grpc-status-details-bin", sent))
        )

    async with refusing(refuse) as address:
        assert reason_of(await aio_call(address)) is found


def test_a_generic_client_reads_the_status() -> None:
    made = status_of(Reason.PAYLOAD_TOO_LARGE, "too large", size_bytes=2, limit_bytes=1)
    assert made.code is grpc.StatusCode.RESOURCE_EXHAUSTED  # type: ignore[attr-defined]
    ((_, value),) = made.trailing_metadata  # type: ignore[attr-defined]
    read = status_pb2.Status.FromString(value)
    info = error_details_pb2.ErrorInfo()
    assert read.details[0].Unpack(info)
    assert (info.reason, info.domain) == ("PAYLOAD_TOO_LARGE", "firesteel")
    assert dict(info.metadata) == {"size_bytes": "2", "limit_bytes": "1"}
    assert rpc_status.to_status(read) == made
